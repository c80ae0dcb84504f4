"""A trained long model with its rows and its evaluation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.artifacts.rows import RowsManifest
from longmlm.data.rows import open_rows
from tests.support.tiny import World, one_thread, tiny_evaluation, tiny_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return tiny_world(tmp_path_factory.getbasetemp(), "roberta", 1)


@pytest.fixture(scope="session")
def evaluation_folder(world: World) -> Path:
    """What the evaluate stage wrote for these models."""
    return tiny_evaluation(world)


@pytest.fixture
def provenance(world: World) -> Provenance:
    return read_provenance(world.trained)


@pytest.fixture
def rows(world: World) -> RowsManifest:
    return open_rows(world.rows, "held_out").manifest


@pytest.fixture
def measured(evaluation_folder: Path) -> Evaluation:
    return read_evaluation(evaluation_folder / "evaluation.json")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
