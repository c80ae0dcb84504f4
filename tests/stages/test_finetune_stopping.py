"""A trial that a signal stops ends early at the same epoch as one that was not stopped."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.artifacts.metrics import MetricsFile
from longmlm.evaluation import task_evaluation
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.training import loop
from longmlm.training.run_folder import list_checkpoints
from tests.support.finetuning import elsewhere, model, result_of, run, settings
from tests.support.training import signal_at

__all__ = ["model", "run", "settings"]


def test_a_signal_in_the_middle_of_an_odd_number_of_epochs_does_not_end_a_trial(
    settings: DownstreamTrialConfig, run: Callable[[DownstreamTrialConfig], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, recipe=replace(settings.recipe, patience=1), num_epochs=5)
    monkeypatch.setattr(task_evaluation, "main_score", lambda *_: 50.0)
    undisturbed = run(settings)
    assert result_of(undisturbed).dev_scores == (50.0, 50.0, 50.0)
    per_epoch = MetricsFile(undisturbed).evaluations()[1].step
    stopped = elsewhere(settings, "stopped")
    with monkeypatch.context() as patched:
        signal_at(5 * per_epoch // 2 + 1, patched)
        folder = run(stopped)
    assert not (folder / DownstreamTrial.FILE).exists()
    assert result_of(run(stopped)).dev_scores == (50.0, 50.0, 50.0)


def test_a_signal_in_the_last_step_leaves_no_epoch_without_a_score(
    settings: DownstreamTrialConfig, run: Callable[[DownstreamTrialConfig], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, num_epochs=2)
    undisturbed = run(settings)
    last_step = MetricsFile(undisturbed).evaluations()[-1].step
    stopped = elsewhere(settings, "stopped")
    with monkeypatch.context() as patched:
        signal_at(last_step - 1, patched)
        folder = run(stopped)
    assert not (folder / DownstreamTrial.FILE).exists()
    assert result_of(run(stopped)).dev_scores == result_of(undisturbed).dev_scores


def test_a_stop_before_the_first_step_does_not_make_the_untrained_model_the_best(
    settings: DownstreamTrialConfig, run: Callable[[DownstreamTrialConfig], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, num_epochs=4)
    scores, evaluate = cycle((90.0, 60.0, 50.0, 50.0, 50.0)), loop.evaluate  # before training, after each epoch
    monkeypatch.setattr(task_evaluation, "main_score", lambda *_: next(scores))
    undisturbed = run(settings)
    stopped = elsewhere(settings, "stopped")

    def evaluated(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "evaluate", evaluated)
        folder = run(stopped)
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000000"]
    assert result_of(run(stopped)).dev_scores == result_of(undisturbed).dev_scores == (60.0, 50.0, 50.0, 50.0)
    assert result_of(folder).predictions == result_of(undisturbed).predictions
