"""What a trial reports while it trains, in a tracker, and afterwards: its costs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForSequenceClassification

from longmlm.model.classification import ClassificationObjective
from longmlm.settings.downstream import DownstreamTrialConfig
from longmlm.settings.pretrain import Tracking
from tests.support.finetuning import elsewhere, model, result_of, run, settings

__all__ = ["model", "run", "settings"]

Run = Callable[[DownstreamTrialConfig], Path]


def test_costs_are_those_of_the_trial(settings: DownstreamTrialConfig, run: Run) -> None:
    folder = run(settings)
    cost = result_of(folder).cost
    assert cost.train_tokens_per_second > 0 and cost.train_seconds > 0 and cost.documents_per_second > 0
    assert cost.peak_memory_bytes > 10**8
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert cost.num_parameters == sum(parameter.numel() for parameter in stock.parameters())


def test_a_trial_is_shown_in_a_tracker(settings: DownstreamTrialConfig, run: Run) -> None:
    folder = run(replace(settings, num_epochs=2, tracking=Tracking(tracker="tensorboard", name="news")))
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    scores = [event.value for event in events.Scalars("held_out/accuracy")]
    assert scores[1:] == pytest.approx(result_of(folder).dev_scores)
    assert events.Scalars("train/loss")


def test_a_frozen_arm_has_no_speed_in_training(settings: DownstreamTrialConfig, run: Run) -> None:
    cost = result_of(run(replace(settings, arm=replace(settings.arm, frozen=True), num_epochs=1))).cost
    assert cost.train_tokens_per_second is None and cost.train_seconds > 0 and cost.documents_per_second > 0


def test_prediction_from_shared_vectors_is_not_timed(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoded = []
    compute = ClassificationObjective._encoded
    monkeypatch.setattr(ClassificationObjective, "_encoded", lambda *args: encoded.append(1) or compute(*args))
    arm, vectors = replace(settings.arm, frozen=True), str(tmp_path / "vectors.safetensors")
    results = []
    for name, is_timed in (("first", True), ("second", False), ("third", False)):
        encoded.clear()
        one = elsewhere(settings, name, arm=arm, num_epochs=1, vectors=vectors, times_prediction=is_timed)
        results.append(result_of(run(one)))
    assert [result.cost.documents_per_second is None for result in results] == [False, True, True]
    assert len(encoded) == 1  # the check of the longest input; the second trial encoded the test documents
    for mine, its in zip(results[2].predictions, results[0].predictions, strict=True):
        assert mine.predicted == its.predicted
        assert mine.probabilities == pytest.approx(its.probabilities, abs=1e-5)
