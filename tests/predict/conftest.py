"""A tiny RoBERTa with its long model, and the predict command as a user types it."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.commands import command, printed, refusal
from tests.support.worlds import run_folder, world

__all__ = ["command", "printed", "refusal", "run_folder", "world"]


@pytest.fixture
def predicted(printed: Callable[..., str]) -> Callable[..., str]:
    """Runs longmlm predict, and returns what it prints."""
    return partial(printed, "predict")


@pytest.fixture
def refused(refusal: Callable[..., str]) -> Callable[..., str]:
    """Runs longmlm predict, which must fail with exit code 2 and one line, and returns this line."""
    return partial(refusal, "predict")
