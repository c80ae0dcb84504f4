"""Fixtures of small runs in this process."""

from collections.abc import Iterator

import pytest

from longmlm.reports import training
from tests.support.hub_rows import hub, published_files, short
from tests.support.training import (
    died,
    drawn,
    finished,
    half_trained,
    inputs,
    no_account,
    settings,
    train,
    uninterrupted,
)
from tests.support.worlds import models, world

__all__ = [
    "died",
    "drawn",
    "finished",
    "half_trained",
    "hub",
    "inputs",
    "models",
    "no_account",
    "published_files",
    "settings",
    "short",
    "train",
    "uninterrupted",
    "world",
]


@pytest.fixture(autouse=True, scope="module")
def undrawn_charts() -> Iterator[None]:
    """The page of a run has empty charts: two real ones take longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "svg", lambda *_: "<svg></svg>")
        yield
