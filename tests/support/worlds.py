"""Fixtures around a tiny RoBERTa. A conftest imports those that its tests need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A RoBERTa with its long model, before and after training, and rows."""
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation(world: World) -> Path:
    """What the evaluate stage wrote for these models."""
    return tiny_evaluation(world)


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Every test of a folder whose conftest imports this runs on one thread."""
    with one_thread():
        yield
