"""A dry run: everything checked, two steps made, nothing written."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.data.rows import open_rows
from longmlm.errors import CheckpointError, FolderError, TrainingError
from longmlm.model.cost import Work, cost_of
from longmlm.model.loading import load_model
from longmlm.planning import dry_run as dry_running
from longmlm.stages.pretrain import pretrain
from longmlm.training import checkpoint
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder, newest_verified, read_state
from tests.support.tiny import with_fresh_process_state
from tests.support.training import losses, with_recipe, with_runtime


@pytest.fixture
def dry_run(capsys):
    """Runs the stage in this process as a dry run and returns what it prints, by subject."""

    def run(config) -> dict[str, str]:
        with_fresh_process_state()
        capsys.readouterr()
        pretrain(replace(config, dry_run=True))
        with_fresh_process_state()
        return {line[:12].strip(): line[12:] for line in capsys.readouterr().out.splitlines()}

    yield run
    with_fresh_process_state()


def files_below(folder: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in folder.rglob("*")}


def test_a_dry_run_reports_what_the_run_will_do_and_writes_nothing(settings, dry_run, inputs, uninterrupted):
    before = files_below(inputs)
    said = dry_run(settings)
    assert files_below(inputs) == before
    assert not Path(settings.run).exists()
    assert said["ahead"].startswith("12 steps, 0.0 M tokens, ")
    assert {"environment", "processes", "model", "rows", "step", "start", "time", "memory", "disk"} <= said.keys()
    assert "computing in fp32" in said["processes"]
    assert said["dry run"] == "nothing was written"
    assert said["step"].startswith(f"{_rows_per_step(uninterrupted)} rows, micro-batches of 4")


def _rows_per_step(run: Path) -> int:
    state = read_state(best_checkpoint(run)).state
    return state.cursor // state.step


def test_epochs_and_tokens_are_those_of_the_run(settings, dry_run, uninterrupted):
    said = dry_run(with_recipe(settings, num_steps=400))["ahead"]
    state = read_state(best_checkpoint(uninterrupted)).state
    epochs = 400 * state.cursor / state.step / len(open_rows(Path(settings.rows), "train"))
    tokens = float(said.split(", ")[1].split()[0])
    assert said.startswith("400 steps, ") and said.endswith(f"{epochs:.2f} epochs")
    assert tokens == pytest.approx(400 * state.tokens / state.step / 1e6, abs=0.02)


def test_a_dry_run_in_the_middle_reports_what_is_left_and_touches_no_checkpoint(settings, dry_run, train):
    recipe = replace(settings.recipe, num_steps=8, schedule="constant-then-decay", decay_steps=1)
    run = train(replace(settings, recipe=recipe))
    shutil.rmtree(checkpoint_folder(run, 8))
    before = files_below(run)
    said = dry_run(replace(settings, recipe=replace(recipe, num_steps=20)))
    assert said["start"] == "step 4 of 20, step-00000004"
    assert said["ahead"].startswith("16 steps, ")
    with pytest.raises(CheckpointError, match="recipe.learning_rate"):
        dry_run(replace(settings, recipe=replace(recipe, num_steps=20, learning_rate=0.5)))
    assert files_below(run) == before


def test_a_finished_run_is_reported_as_finished(settings, finished, capsys):
    capsys.readouterr()
    with_fresh_process_state()
    pretrain(replace(settings, dry_run=True))
    with_fresh_process_state()
    assert "is finished: 12 of 12 steps" in capsys.readouterr().out


def test_absent_rows_are_refused_as_in_the_run(settings, dry_run, tmp_path):
    with pytest.raises(FolderError, match="no such folder"):
        dry_run(replace(settings, rows=str(tmp_path / "nowhere")))


def test_too_little_memory_is_reported_before_a_step_is_made(settings, dry_run, monkeypatch):
    monkeypatch.setattr(dry_running, "free_memory_bytes", lambda: 1_000)
    monkeypatch.setattr(dry_running, "_two_steps", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(TrainingError, match="lower rows_per_micro_batch, or set activation_checkpointing"):
        dry_run(settings)


def test_too_small_a_disk_is_reported_before_a_step_is_made(settings, dry_run, monkeypatch):
    monkeypatch.setattr(checkpoint, "free_bytes", lambda _: 1_000)
    monkeypatch.setattr(dry_running, "_two_steps", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(TrainingError, match="free some space, lower runtime.checkpoints_kept"):
        dry_run(settings)


def test_a_run_stops_before_its_first_step_where_its_checkpoints_do_not_fit(settings, train, monkeypatch):
    monkeypatch.setattr(checkpoint, "free_bytes", lambda _: 500_000)
    with pytest.raises(TrainingError, match=r"will take 0\.0 GB more, 0\.0 GB are free"):
        train(settings)
    assert not Path(settings.run).exists()
    few = replace(settings, runtime=replace(settings.runtime, save_every_steps=12))
    monkeypatch.setattr(checkpoint, "free_bytes", lambda _: 1_000_000)
    assert newest_verified(train(few)).folder.name == "step-00000012"


def test_a_checkpoint_takes_the_predicted_space(uninterrupted):
    folder = best_checkpoint(uninterrupted)
    weights = [folder / "model.safetensors", folder / "optimizer.pt"]
    predicted = cost_of(load_model(str(folder)).model, Work(32, 0.15, False)).checkpoint_bytes
    assert sum(path.stat().st_size for path in weights) == pytest.approx(predicted, rel=0.2)


def test_recomputed_activations_leave_every_loss_as_it_is(settings, train, uninterrupted):
    assert losses(train(with_runtime(settings, activation_checkpointing=True))) == losses(uninterrupted)
    assert len(losses(uninterrupted)) == 12
