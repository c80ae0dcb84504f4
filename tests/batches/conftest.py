"""A tiny RoBERTa with its rows."""

from collections.abc import Iterator

import pytest

from tests.support.tiny import World, one_thread, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
