"""Fixtures of small runs in processes of their own."""

from tests.support.hub_rows import hub, published_files, short
from tests.support.training import half_trained, inputs, no_account, settings, train
from tests.support.worlds import models, world

__all__ = [
    "half_trained",
    "hub",
    "inputs",
    "models",
    "no_account",
    "published_files",
    "settings",
    "short",
    "train",
    "world",
]
