"""A base model of each kind."""

from pathlib import Path

import pytest

from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS
from tests.support.served import hub, served, waits
from tests.support.tiny import tiny_folder
from tests.support.worlds import world

__all__ = ["any_kind", "base", "hub", "kind", "served", "waits", "world"]


def name_of(kind: tuple[str, int]) -> str:
    return "{}-pad{}".format(*kind)


@pytest.fixture(params=SPECIAL, ids=name_of)
def kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A family of models that can be extended, and the id of its padding token."""
    return request.param


@pytest.fixture(params=SPECIAL | SPECIAL_OF_OTHERS, ids=name_of)
def any_kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A family of models, and the id of its padding token."""
    return request.param


@pytest.fixture
def base(kind: tuple[str, int], tmp_path: Path) -> Path:
    """The folder of a base model."""
    return tiny_folder(tmp_path / "base", *kind)
