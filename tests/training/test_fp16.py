"""Training in fp16: scaled losses, skipped updates, and a scaler that is saved with the optimizer."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.run import RunSummary
from longmlm.errors import TrainingError
from longmlm.model.mlm import LossSum, MlmObjective
from longmlm.stages.pretrain import pretrain
from longmlm.training import checkpoint, loop, update
from longmlm.training.checkpoint import run_precision
from longmlm.training.run_folder import checkpoint_folder, read_state
from tests.support import precision
from tests.support.training import (
    assert_same_model,
    evaluation_lines,
    losses,
    moments_at,
    state_at,
    train_until,
    training_lines,
    weights_at,
    with_recipe,
    with_runtime,
)


@pytest.fixture
def fp16(settings):
    return with_recipe(settings, precision="fp16")


@pytest.fixture
def scaler(monkeypatch):
    """Makes runs start with this loss scale, which doubles after each `interval` updates."""
    original = torch.amp.GradScaler

    def set_up(init_scale: float, growth_interval: int = 2000) -> None:
        changed = functools.partial(original, init_scale=init_scale, growth_interval=growth_interval)
        monkeypatch.setattr(torch.amp, "GradScaler", changed)

    return set_up


def scaler_at(run: Path, step: int) -> dict[str, float]:
    return torch.load(checkpoint_folder(run, step) / "optimizer.pt", weights_only=True)["scaler"]


def test_twenty_steps_in_fp16_have_the_losses_of_fp32(settings, train, tmp_path):
    recipe = replace(settings.recipe, num_steps=20, dropout=0.0)
    runs = [
        train(replace(settings, run=str(tmp_path / name), recipe=replace(recipe, precision=name)))
        for name in ("no", "fp16")
    ]
    single, half = map(losses, runs)
    assert half == pytest.approx(single, abs=5e-3)
    assert half != single
    assert len(half) == 20 and half[-1] < half[0] - 0.1
    assert state_at(runs[1], 20).skipped_steps == 0
    held_out = [[line.held_out.whole.loss for line in evaluation_lines(run)] for run in runs]
    assert held_out[1] == pytest.approx(held_out[0], abs=5e-3)
    tensors = [*weights_at(runs[1], 20).values(), *moments_at(runs[1], 20)]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    optimizers = [torch.load(checkpoint_folder(run, 20) / "optimizer.pt", weights_only=True) for run in runs]
    assert ["scaler" in optimizer for optimizer in optimizers] == [False, True]
    assert read_state(checkpoint_folder(runs[1], 20)).precision == "fp16"
    trained = read_provenance(checkpoint_folder(runs[1], 20)).trained
    assert trained is not None and trained.precision == "fp16"


def test_a_run_that_skips_updates_resumes_bit_for_bit_with_the_scale_and_its_growth(fp16, train, scaler, tmp_path):
    scaler(init_scale=2.0**24, growth_interval=5)
    whole = train(replace(fp16, run=str(tmp_path / "whole")))
    train_until(fp16, 6)
    resumed = train(fp16)
    assert 3 < state_at(whole, 12).skipped_steps < 12
    assert replace(state_at(resumed, 12), training_seconds=0.0) == replace(state_at(whole, 12), training_seconds=0.0)
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)
    before, after = scaler_at(whole, 8), scaler_at(whole, 12)
    assert before["scale"] < 2.0**24 and before != after == scaler_at(resumed, 12)


def test_a_skipped_update_is_a_step_that_changes_no_weight(fp16, train, scaler):
    scaler(init_scale=2.0**60)
    fp16 = with_runtime(with_recipe(fp16, num_steps=3, warmup_steps=1), save_every_steps=1, checkpoints_kept=3)
    run = train(fp16)
    first, second = weights_at(run, 1), weights_at(run, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    moments = torch.load(checkpoint_folder(run, 2) / "optimizer.pt", weights_only=True)["state"].values()
    assert all(not value.any() for moment in moments for value in moment.values())  # the step as well
    states = [state_at(run, step) for step in (1, 2, 3)]
    assert [state.skipped_steps for state in states] == [1, 2, 3] == [state.skipped_in_a_row for state in states]
    assert states[1].cursor == 2 * states[0].cursor and states[1].tokens > states[0].tokens
    lines = training_lines(run)
    assert [(line.gradient_norm, line.skipped_steps) for line in lines] == [(None, 1), (None, 2), (None, 3)]
    assert all(math.isfinite(line.targets["mlm"].loss) for line in lines)
    assert lines[1].learning_rate > lines[2].learning_rate > 0
    assert [scaler_at(run, step)["scale"] for step in (1, 2, 3)] == [2.0**59, 2.0**58, 2.0**57]
    assert artifact.read(RunSummary, run / RunSummary.FILE).state.skipped_steps == 3


def test_a_loss_that_is_not_finite_is_skipped_and_does_not_enter_the_means(fp16, train, monkeypatch, capsys):
    """The gradient of this loss is finite: it is the loss that forbids the update."""
    forward, one_update, steps = MlmObjective.forward, loop.one_update, []

    def counted(task, run, batches, state):
        steps.append(state.step)
        return one_update(task, run, batches, state)

    def infinite(self, batch):
        output = forward(self, batch)
        loss, num_correct = output["mlm"]
        return {"mlm": LossSum(loss + math.inf, num_correct)} if steps[-1:] == [2] else output

    monkeypatch.setattr(loop, "one_update", counted)
    monkeypatch.setattr(MlmObjective, "forward", infinite)
    run = train(with_runtime(fp16, save_every_steps=1, checkpoints_kept=12))
    second, third = weights_at(run, 2), weights_at(run, 3)
    assert all(torch.equal(second[name], third[name]) for name in second)
    assert [line.step for line in training_lines(run)] == [1, 2, *range(4, 13)]
    assert state_at(run, 12).skipped_steps == 1 and state_at(run, 12).skipped_in_a_row == 0
    assert "step 3/12 no finite loss, 1 skipped" in capsys.readouterr().err


def test_updates_that_are_skipped_in_a_row_end_the_run_in_one_line(fp16, train, scaler, monkeypatch):
    scaler(init_scale=2.0**90)
    monkeypatch.setattr(update, "MAX_SKIPPED_IN_A_ROW", 7)
    fp16 = with_runtime(fp16, save_every_steps=2)
    with pytest.raises(TrainingError, match="not finite in step 7, as in the 6 skipped updates before it"):
        train(fp16)
    run = Path(fp16.run)
    assert json.loads((run / "non-finite-step-00000007-process-0.json").read_text())["row_ids"]
    with pytest.raises(TrainingError, match="not finite in step 7, as in the 6 skipped updates"):
        train(fp16)  # the count is part of the checkpoint
    assert state_at(run, 6).skipped_in_a_row == 6


def test_a_run_in_fp16_stays_in_it_when_the_recipe_becomes_auto(fp16, train, monkeypatch, capsys):
    train_until(fp16, 6)
    monkeypatch.setenv(precision.VARIABLE, "0")
    capsys.readouterr()
    run = train(with_recipe(fp16, precision="auto"))
    assert (
        "was trained in fp16: the run continues in fp16, although auto means fp32 on this machine"
        in capsys.readouterr().out
    )
    assert read_state(checkpoint_folder(run, 12)).precision == "fp16"
    assert scaler_at(run, 12)["_growth_tracker"] == 12


def test_auto_on_a_gpu_without_bf16_says_that_fp16_is_faster(monkeypatch):
    monkeypatch.setenv(precision.VARIABLE, "0")
    assert run_precision("auto", None, None) == ("no", ())
    monkeypatch.setattr(checkpoint.torch.cuda, "is_available", lambda: True)
    chosen, [note] = run_precision("auto", None, None)
    assert chosen == "no" and "recipe.precision = 'fp16' is faster" in note
    assert run_precision("no", None, None) == ("no", ())


def test_a_dry_run_names_the_precision(fp16, capsys):
    pretrain(replace(fp16, dry_run=True))
    assert "computing in fp16" in capsys.readouterr().out
