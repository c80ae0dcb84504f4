"""Fixtures around a tiny RoBERTa. A conftest imports those that its tests need; torch is imported by those in use."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.once import ground, once


@dataclass(frozen=True, slots=True)
class World:
    """The inputs of the stages: a base model, its long one before and after training, and rows of the long length."""

    base: Path
    long: Path
    trained: Path
    rows: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A RoBERTa with its long model, before and after training, and rows."""
    from tests.support.tiny import tiny_world

    return tiny_world(ground(tmp_path_factory), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation(world: World) -> Path:
    """What the evaluate stage wrote for these models."""
    from tests.support.tiny import tiny_evaluation

    return tiny_evaluation(world)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: rows of a long length, and the long model in each mode of positions."""
    from longmlm.model.extension import write_extension
    from longmlm.model.loading import load_model
    from tests.support.tiny import LONG_POSITIONS, tiny_extension, tiny_folder, tiny_rows

    def make(folder: Path) -> None:
        base = tiny_folder(folder / "base")
        for mode in modes:
            write_extension(load_model(str(base)), tiny_extension(base, mode=mode), folder / mode)
        tiny_rows(folder / "packed", base)

    modes = ("generated", "materialized")
    folder = once(ground(tmp_path_factory) / "models", make)
    return {"rows": folder / "packed" / f"rows-{LONG_POSITIONS}", **{mode: folder / mode for mode in modes}}


@pytest.fixture
def run_folder(world: World, tmp_path: Path) -> Path:
    """A run whose first checkpoint is better than its second: its weights are those of the trained model."""
    from tests.support.tiny import tiny_run

    return tiny_run(world, tmp_path / "run")
