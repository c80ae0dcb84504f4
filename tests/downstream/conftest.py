"""The kinds of encoders that arms may have, and a long model."""

import pytest

from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS
from tests.support.worlds import world

__all__ = ["any_kind", "world"]


@pytest.fixture(scope="session", params=[*SPECIAL, *SPECIAL_OF_OTHERS], ids="{0[0]}-pad{0[1]}".format)
def any_kind(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A family of models, and the id of its padding token."""
    return request.param
