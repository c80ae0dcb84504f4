"""Hubs on this machine, a folder to publish, and a clock that does not wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub
from tests.support.served import Served, make, serve


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The hub that the test's parameter names, or the Hugging Face Hub."""
    with serve(getattr(request, "param", "hf"), tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def hub(served: Served) -> Hub:
    """The Hugging Face Hub."""
    return served.server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder such as a release is."""
    return make(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for, by retry and by the clients, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds
