"""A trained long model, its rows and its evaluation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub
from tests.support.served import Served, serve
from tests.support.worlds import evaluation, single_thread, world

__all__ = ["evaluation", "hub", "served", "single_thread", "world"]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The Hugging Face Hub on this machine; retries take no time."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with serve("hf", tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def hub(served: Served) -> Hub:
    return served.server
