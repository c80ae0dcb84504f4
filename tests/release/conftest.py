"""A trained long model, its rows and its evaluation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Hub
from tests.support.served import Served, serve
from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation(world: World) -> Path:
    return tiny_evaluation(world)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The Hugging Face Hub on this machine; retries take no time."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with serve("hf", tmp_path, monkeypatch) as served:
        yield served


@pytest.fixture
def hub(served: Served) -> Hub:
    return served.server
