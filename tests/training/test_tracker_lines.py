"""What a tracker is shown of the metrics, and what it may print."""

from dataclasses import replace

import pytest

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.errors import TrainingError
from longmlm.settings.pretrain import Tracking
from longmlm.training import tracker
from tests.artifacts.test_metrics import at


def test_numbers_have_the_names_of_the_curves_and_absent_ones_are_left_out():
    shown = tracker.figures(replace(at(3), gradient_norm=float("inf")))
    assert (shown["train/mlm_loss"], shown["train/tokens_per_second"]) == (2.5, 10.0)
    assert not {"train/mfu", "train/gradient_norm", "train/step", "train/format", "train/longmlm"} & shown.keys()
    accuracy = Accuracy(40.0, 1.0, 3.0, 9)
    held_out = Measured(accuracy, (accuracy, Accuracy(None, None, None, 0)), (), (9,), (4,))
    line = EvaluationMetrics(step=3, tokens=9, held_out=held_out, base_chunks=40.0, base_cut=41.0)
    assert tracker.figures(line) == {
        "held_out/accuracy": 40.0,
        "held_out/standard_error": 1.0,
        "held_out/loss": 3.0,
        "held_out/num_selected": 9.0,
        "held_out/base_chunks": 40.0,
        "held_out/base_cut": 41.0,
        "held_out/block_0": 40.0,
    }
    assert tracker.predictions(line) == []
    example = FilledMask(row_id=7, position=30, before="a ", after=" c", truth="b", guesses=(("b", 0.75), ("d", 0.25)))
    [row] = tracker.predictions(replace(line, examples=(example,)))
    assert list(row.values()) == ["7", "30", "a ", "b", " c", "b", 75.0, "d", 25.0]


def test_an_error_of_a_tracker_is_printed_without_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    redacted = tracker.redact("planted-key is false\nat https://me:planted@example.org/x" + 999 * ".")
    assert redacted.startswith("*** is false at https://example.org/x")
    assert len(redacted) == 300


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra_before_training(name, settings, train, monkeypatch):
    monkeypatch.setattr(tracker, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=rf"pip install 'longmlm\[{name}\]'"):
        train(replace(settings, tracking=Tracking(tracker=name)))
