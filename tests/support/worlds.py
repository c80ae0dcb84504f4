"""Fixtures around a tiny RoBERTa. A conftest imports those that its tests need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate import Accelerator

from longmlm.artifacts.provenance import TrainingRecord, read_provenance
from longmlm.artifacts.run import TrainState
from longmlm.model.extension import write_extension
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.backend import PlainBackend
from longmlm.training.checkpoint import take_snapshot, write_checkpoint
from longmlm.training.run import RunRecord
from tests.support.tiny import (
    LONG_POSITIONS,
    World,
    measured_on,
    one_thread,
    tiny_evaluation,
    tiny_extension,
    tiny_folder,
    tiny_rows,
    tiny_world,
    with_fresh_process_state,
)


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


@pytest.fixture
def run_folder(world: World, tmp_path: Path) -> Path:
    """A run whose first checkpoint is better than its second: its weights are those of the trained model."""
    with_fresh_process_state()
    accelerator = Accelerator(cpu=True)
    folder = tmp_path / "run"
    for step, (source, accuracy) in enumerate([(world.trained, 9.0), (world.long, 3.0)], start=1):
        loaded = load_model(str(source))
        state = TrainState(step=step, tokens=100 * step, accuracy=accuracy, evaluated_at_step=step)
        about = read_provenance(str(world.long))
        trained_on = TrainingRecord(row_length=LONG_POSITIONS, steps=0, tokens=0, **measured_on(world.rows))
        recipe = PretrainRecipe(num_steps=2, batch_tokens=100, learning_rate=1e-4)
        backend = PlainBackend.wrap(accelerator, MlmObjective(loaded.model), recipe)
        snapshot = take_snapshot(backend, accelerator)
        record = RunRecord(loaded.tokenizer, "", recipe, about, trained_on)
        write_checkpoint(folder, state, loaded.model, snapshot, record)
    with_fresh_process_state()
    return folder
