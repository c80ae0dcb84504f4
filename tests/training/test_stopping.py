"""Runs in this process that a stop signal or a loss that is not finite stops."""

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch

from longmlm.batches.sampling import global_batch, rows_per_step
from longmlm.data.rows import open_rows
from longmlm.errors import TrainingError
from longmlm.evaluation import measure, run_evaluation
from longmlm.runtime.signals import exit_on_signal
from longmlm.training import loop
from longmlm.training.run_folder import (
    checkpoint_folder,
    newest_verified,
)
from tests.support.training import (
    assert_same_model,
    evaluation_lines,
    losses,
    signal_at,
    state_at,
    weights_at,
)


def test_a_stop_signal_takes_effect_after_the_update_and_the_same_command_completes_the_run(
    settings, uninterrupted, train, monkeypatch, capsys
):
    with monkeypatch.context() as patched:
        signal_at(5, patched)
        run = train(settings)
    assert "stopped by SIGTERM after step 6" in capsys.readouterr().out
    assert newest_verified(run).folder == checkpoint_folder(run, 6)
    train(settings)
    assert_same_model(uninterrupted, run, 12)
    assert losses(run) == losses(uninterrupted)


@pytest.mark.parametrize("step", [8, 12])
def test_a_stop_signal_in_an_evaluation_abandons_it_and_the_resumed_run_makes_up_for_it(
    settings, uninterrupted, train, monkeypatch, capsys, step
):
    whole, collate, rows, rows_at_passes = run_evaluation.whole, measure.collate, [], []
    row_of_signal = 20 * step // 4 + 3  # of 20 rows in each evaluation, the first at step 0

    def interrupted(row):
        rows.append(row)
        if len(rows) == row_of_signal:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(row)

    def counted(*inputs, **more):
        rows_at_passes.append(len(rows))
        return collate(*inputs, **more)

    with monkeypatch.context() as patched:
        patched.setattr(run_evaluation, "whole", interrupted)
        patched.setattr(measure, "collate", counted)
        run = train(settings)
    assert max(rows_at_passes) < row_of_signal <= len(rows)
    assert f"stopped by SIGTERM after step {step}" in capsys.readouterr().out
    assert newest_verified(run).folder == checkpoint_folder(run, step)
    assert (state_at(run, step).step, state_at(run, step).accuracy_here) == (step, None)
    train(settings)
    assert_same_model(uninterrupted, run, 12)
    assert losses(run) == losses(uninterrupted)
    assert evaluation_lines(run) == evaluation_lines(uninterrupted)
    assert state_at(run, step).accuracy_here == state_at(uninterrupted, step).accuracy_here


def test_sigterm_before_the_first_step_leaves_no_checkpoint_and_the_same_command_starts_again(
    settings, uninterrupted, train, monkeypatch, capfd
):
    with monkeypatch.context() as patched, exit_on_signal(""):
        patched.setattr(run_evaluation, "whole", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stop:
            train(settings)
    assert stop.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err.count("stopped by SIGTERM") == 1
    run = Path(settings.run)
    assert newest_verified(run).folder is None
    assert_same_model(uninterrupted, train(settings), 12)


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_rows(settings, train, monkeypatch):
    update = loop.one_update

    def spoiled(task, run, batches, state):
        if state.step == 9:
            with torch.no_grad():
                run.backend.objective.model.lm_head.bias[7] = math.nan
        return update(task, run, batches, state)

    monkeypatch.setattr(loop, "one_update", spoiled)
    with pytest.raises(TrainingError, match="step 10"):
        train(settings)
    run = Path(settings.run)
    assert newest_verified(run).folder == checkpoint_folder(run, 8)
    named = json.loads((run / "non-finite-step-00000010-process-0.json").read_text())
    rows = open_rows(Path(settings.rows), "train")
    num_rows = rows_per_step(settings.recipe.batch_tokens, rows.row_length, rows.mean_fill, num_processes=1)
    expected = global_batch(9 * num_rows, num_rows, len(rows), settings.recipe.seed).row_ids.tolist()
    assert (named["step"], sorted(named["row_ids"])) == (10, sorted(expected))
    assert all(torch.isfinite(tensor).all() for tensor in weights_at(run, 8).values())
