"""A trained long model with its rows and its evaluation."""

from pathlib import Path

import pytest

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import Provenance, read_provenance
from longmlm.artifacts.rows import RowsManifest
from longmlm.data.rows import open_rows
from tests.support.worlds import World, evaluation, world

__all__ = ["evaluation", "world"]


@pytest.fixture
def provenance(world: World) -> Provenance:
    return read_provenance(world.trained)


@pytest.fixture
def rows(world: World) -> RowsManifest:
    return open_rows(world.rows, "held_out").manifest


@pytest.fixture
def measured(evaluation: Path) -> Evaluation:
    return read_evaluation(evaluation / "evaluation.json")
