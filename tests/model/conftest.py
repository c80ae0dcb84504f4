"""A base model of each kind, and what is made of it."""

import shutil
from pathlib import Path

import pytest

from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS
from tests.support.served import hub, served, waits
from tests.support.tiny import tiny_folder
from tests.support.worlds import single_thread, world

__all__ = ["any_kind", "base", "copy", "hub", "kind", "served", "single_thread", "waits", "world"]

KINDS, OTHERS = list(SPECIAL), list(SPECIAL_OF_OTHERS)


def name_of(kind: tuple[str, int]) -> str:
    return "{}-pad{}".format(*kind)


@pytest.fixture(scope="session", params=KINDS, ids=name_of)
def kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A family of models that can be extended, and the id of its padding token."""
    return request.param


@pytest.fixture(scope="session", params=KINDS + OTHERS, ids=name_of)
def any_kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A family of models, and the id of its padding token."""
    return request.param


@pytest.fixture(scope="session")
def base(kind: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a base model, which no test may change."""
    return tiny_folder(tmp_path_factory.mktemp("base") / "model", *kind)


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    """A copy of the base model to damage."""
    return Path(shutil.copytree(base, tmp_path / "copy"))
