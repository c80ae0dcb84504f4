"""A trained long model with its rows and its evaluation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation_folder(world: World) -> Path:
    """What the evaluate stage wrote for these models."""
    return tiny_evaluation(world)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
