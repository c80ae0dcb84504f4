"""Fixtures of small runs in this process."""

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
