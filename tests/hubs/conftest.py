"""Fixtures: fake hubs, a folder to publish, and a sleep that returns at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub
from tests.support.served import Served, make, serve


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The hub that the test's parameter names; by default the Hugging Face Hub."""
    with serve(getattr(request, "param", "hf"), tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def hub(served: Served) -> Hub:
    """The Hugging Face Hub."""
    return served.server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder like a release."""
    return make(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses in seconds that retry and the clients asked for; none of them is waited for."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds
