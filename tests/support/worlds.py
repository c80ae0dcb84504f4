"""Fixtures around a tiny RoBERTa. A conftest imports those that its tests need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longmlm.model.extension import write_extension
from longmlm.model.loading import load_model
from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_extension, tiny_folder, tiny_rows, tiny_world


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


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: rows of a long length, and the long model in each mode of positions."""
    folder = tmp_path_factory.mktemp("generated")
    base = tiny_folder(folder / "base")
    for mode in ("generated", "materialized"):
        write_extension(load_model(str(base)), tiny_extension(base, mode=mode), folder / mode)
    return {"rows": tiny_rows(folder, base), **{mode: folder / mode for mode in ("generated", "materialized")}}
