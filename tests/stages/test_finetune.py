"""The process of a trial, on documents that a tiny model can learn."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.data.folds import folds_of
from longmlm.data.labelled import read_labelled
from longmlm.errors import DataError
from longmlm.evaluation import task_evaluation
from longmlm.folders import verify
from longmlm.hubs.models import model_sha256
from longmlm.settings.downstream import Arm, DownstreamTrialConfig
from longmlm.training import loop
from longmlm.trials.downstream_planned import documents_sha256
from tests.support.documents import CUES, separable_file
from tests.support.finetuning import (
    RUNTIME,
    accuracy_of,
    elsewhere,
    model,
    probabilities_of,
    result_of,
    run,
    settings,
)
from tests.support.training import signal_at, stop_after

__all__ = ["model", "run", "settings"]

Run = Callable[[DownstreamTrialConfig], Path]


def test_a_separable_task_is_learnt_and_the_model_loads_in_transformers(
    settings: DownstreamTrialConfig, run: Run
) -> None:
    folder = run(settings)
    trial = result_of(folder)
    assert accuracy_of(trial) == max(trial.dev_scores) == 100
    assert len(trial.dev_scores) == settings.num_epochs
    assert trial.values == {"learning_rate": settings.learning_rate, "num_epochs": settings.num_epochs}
    corpus = read_labelled(settings.task)
    (fold,) = folds_of(corpus, settings.task, settings.seed)
    tested = [corpus.documents[number] for number in fold.test]
    assert [one.document for one in trial.predictions] == [document.id for document in tested]
    assert [one.labels for one in trial.predictions] == [document.labels for document in tested]
    assert not (folder / "checkpoints").exists()
    verify(folder / "model")
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tuple(stock.config.id2label.values()) == corpus.labels == tuple(sorted(CUES))
    with torch.inference_mode():
        for document, prediction in zip(tested, trial.predictions, strict=True):
            logits = stock(**tokenizer(document.text, truncation=True, return_tensors="pt")).logits
            assert logits.softmax(-1)[0].tolist() == pytest.approx(prediction.probabilities, abs=1e-4)
    trained = read_provenance(folder / "model")
    assert trained.started_from.name == settings.arm.model and trained.trained.steps > 0


@pytest.mark.parametrize("changed", ["documents", "model"])
def test_inputs_that_changed_since_the_command_started_are_refused(
    settings: DownstreamTrialConfig, run: Run, tmp_path: Path, changed: str
) -> None:
    model = shutil.copytree(str(settings.arm.model), tmp_path / "model")
    settings = replace(
        settings,
        arm=Arm(model=str(model)),
        num_epochs=1,
        documents_sha256=documents_sha256(read_labelled(settings.task)),
        model_sha256=model_sha256(model),
    )
    path = tmp_path / "documents.jsonl" if changed == "documents" else model / "tokenizer_config.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace('"text": "', '"text": "More. ', 1) if changed == "documents" else f"{before}\n")
    with pytest.raises(
        DataError, match=rf"{changed} ha(ve|s) changed since the command started: run longmlm downstream again"
    ):
        run(settings)
    assert not Path(settings.folder, DownstreamTrial.FILE).exists()
    path.write_text(before, encoding="utf-8")
    assert result_of(run(settings)).predictions


def test_the_seed_decides_the_result(settings: DownstreamTrialConfig, run: Run) -> None:
    short = replace(settings, num_epochs=1)
    one, same = (result_of(run(elsewhere(short, name))) for name in ("one", "same"))
    assert one.predictions == same.predictions and one.dev_scores == same.dev_scores
    other = result_of(run(elsewhere(short, "other", seed=2)))
    assert {one.document for one in other.predictions} != {one.document for one in same.predictions}


@pytest.mark.parametrize("arm", [{}, {"reads": "chunks", "length": 12, "pooling": "lstm"}, {"frozen": True}])
def test_a_trial_that_was_killed_ends_as_if_it_had_not_been(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, arm: dict[str, object]
) -> None:
    settings = replace(settings, arm=replace(settings.arm, **arm), num_epochs=3)
    expected = result_of(run(elsewhere(settings, "uninterrupted")))
    every = MetricsFile(Path(settings.folder).with_name("uninterrupted")).evaluations()[1].step
    with monkeypatch.context() as patched:
        stop_after(patched, 2 * every + 1)
        with pytest.raises(SystemExit):
            run(settings)
    folder = Path(settings.folder)
    assert not (folder / DownstreamTrial.FILE).exists()
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"step-{step:08d}" for step in (every, 2 * every)
    ]
    trial = result_of(run(settings))
    assert trial.predictions == expected.predictions and trial.dev_scores == expected.dev_scores


def test_a_stop_signal_saves_the_trial_and_the_same_command_ends_it(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(settings, num_epochs=2)
    expected = result_of(run(elsewhere(settings, "uninterrupted")))
    with monkeypatch.context() as patched:
        signal_at(3, patched)
        folder = run(settings)
    assert "stopped by SIGTERM after step 4" in capsys.readouterr().out
    assert not (folder / DownstreamTrial.FILE).exists() and (folder / "checkpoints" / "step-00000004").is_dir()
    assert result_of(run(settings)).predictions == expected.predictions


def test_the_size_of_micro_batches_changes_results_by_rounding_only(settings: DownstreamTrialConfig, run: Run) -> None:
    settings = replace(settings, num_epochs=2, recipe=replace(settings.recipe, dropout=0.0))
    of_size = {
        size: result_of(run(elsewhere(settings, f"by-{size}", runtime=replace(RUNTIME, rows_per_micro_batch=size))))
        for size in (1, 8)
    }
    assert probabilities_of(of_size[1]) == pytest.approx(probabilities_of(of_size[8]), abs=1e-3)
    assert of_size[1].dev_scores == of_size[8].dev_scores


def scored(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> list[np.ndarray]:
    """Makes the evaluations of a trial score these, and returns the classifier's weights at each of them."""
    left, seen = iter(scores), []
    outputs_of = task_evaluation.outputs_of

    def watched(objective, *arguments):
        seen.append(objective.model.classifier.weight.detach().numpy().copy())
        return outputs_of(objective, *arguments)

    monkeypatch.setattr(task_evaluation, "outputs_of", watched)
    monkeypatch.setattr(task_evaluation, "main_score", lambda *_: next(left))
    return seen


def test_training_ends_when_the_score_has_not_risen_for_a_while_and_the_best_epoch_is_tested(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, recipe=replace(settings.recipe, patience=2))
    weights = scored(monkeypatch, [90.0, 40.0, 60.0, 50.0, 59.0, 99.0, 99.0])  # the first before training
    folder = run(settings)
    assert result_of(folder).dev_scores == (40.0, 60.0, 50.0, 59.0)
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert np.array_equal(stock.classifier.weight.detach().numpy(), weights[2])
    assert not np.array_equal(weights[2], weights[4])


def test_of_equal_epochs_the_latest_is_tested(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, recipe=replace(settings.recipe, patience=4))
    weights = scored(monkeypatch, [0.0, 40.0, 60.0, 60.0, 50.0, 60.0, 50.0])
    folder = run(settings)
    assert result_of(folder).dev_scores == (40.0, 60.0, 60.0, 50.0, 60.0, 50.0)
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert np.array_equal(stock.classifier.weight.detach().numpy(), weights[5])


def test_training_does_not_end_before_half_of_the_epochs(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, recipe=replace(settings.recipe, patience=1), num_epochs=6)
    scored(monkeypatch, [50.0, 50.0, 50.0, 50.0, 99.0, 99.0, 99.0])
    assert result_of(run(settings)).dev_scores == (50.0, 50.0, 50.0)


def test_patience_is_remembered_by_a_trial_that_was_killed(
    settings: DownstreamTrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, recipe=replace(settings.recipe, patience=2))
    with monkeypatch.context() as patched:
        scored(patched, [0.0, 60.0, 50.0])
        update = loop.one_update

        def dying(task, run, batches, state):
            if state.best_at_step is not None and state.step > 2 * state.best_at_step:
                raise SystemExit
            return update(task, run, batches, state)

        patched.setattr(loop, "one_update", dying)
        with pytest.raises(SystemExit):
            run(settings)
    scored(monkeypatch, [55.0, 99.0])
    assert result_of(run(settings)).dev_scores == (60.0, 50.0, 55.0)


@pytest.mark.parametrize(
    "arm",
    [
        {"reads": "chunks", "length": 12, "pooling": "mean"},
        {"reads": "chunks", "length": 12, "pooling": "attention"},
        {"reads": "chunks", "length": 12, "pooling": "cnn", "frozen": True},
        {"reads": "last", "frozen": True},
    ],
)
def test_every_kind_of_arm_learns(settings: DownstreamTrialConfig, run: Run, arm: dict[str, object]) -> None:
    num_epochs = 20 if "frozen" in arm else 8
    recipe = replace(settings.recipe, patience=num_epochs)
    trial = result_of(run(replace(settings, arm=replace(settings.arm, **arm), num_epochs=num_epochs, recipe=recipe)))
    assert max(trial.dev_scores) > 80 and accuracy_of(trial) > 80


def test_documents_with_several_labels(settings: DownstreamTrialConfig, run: Run, tmp_path: Path) -> None:
    file = separable_file(tmp_path / "several.jsonl", is_multilabel=True)
    task = replace(settings.task, data=replace(settings.task.data, files=(str(file),)))
    folder = run(replace(settings, task=task, num_epochs=10))
    trial = result_of(folder)
    assert {len(one.labels) for one in trial.predictions} == {1, 2}
    assert accuracy_of(trial) > 80
    config = AutoModelForSequenceClassification.from_pretrained(folder / "model").config
    assert config.problem_type == "multi_label_classification"


def test_an_arm_without_a_model_is_tfidf(settings: DownstreamTrialConfig, run: Run) -> None:
    trial = result_of(run(replace(settings, arm=Arm(), num_explained=2)))
    assert trial.values == {} and len(trial.dev_scores) == 1
    assert accuracy_of(trial) == 100
    assert len(trial.explanations) == 2


@pytest.mark.parametrize("is_model", [True, False])
def test_predictions_name_the_unit_of_copies_and_groups(
    settings: DownstreamTrialConfig, run: Run, is_model: bool
) -> None:
    file = Path(settings.task.data.files[0])
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for number, record in enumerate(records):
        record["author"] = f"author {number // 4}"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    task = replace(settings.task, data=replace(settings.task.data, group_field="author"))
    arm = settings.arm if is_model else Arm()
    trial = result_of(run(replace(settings, task=task, arm=arm, num_epochs=1)))
    groups = {document.id: document.group for document in read_labelled(task).documents}
    units = {one.document: one.unit for one in trial.predictions}
    assert len({*units.values()}) == len({groups[name] for name in units}) == len(units) / 4 > 1
    assert all(groups[unit] == groups[name] for name, unit in units.items())


def test_explanations_are_of_the_longest_test_documents(settings: DownstreamTrialConfig, run: Run) -> None:
    trial = result_of(run(replace(settings, num_epochs=1, num_explained=2)))
    lengths = {document.id: len(document.text) for document in read_labelled(settings.task).documents}
    tested = sorted((lengths[one.document] for one in trial.predictions), reverse=True)
    assert [lengths[one.document] for one in trial.explanations] == tested[:2]
    by_document = {one.document: one for one in trial.predictions}
    for one in trial.explanations:
        assert one.probability == pytest.approx(100 * max(by_document[one.document].probabilities), abs=0.1)


@pytest.mark.parametrize("is_model", [True, False])
def test_paragraphs_beyond_the_length_are_not_read(settings: DownstreamTrialConfig, run: Run, is_model: bool) -> None:
    file = Path(settings.task.data.files[0])
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for record in records:
        record["text"] = f"{record['text']}\nFirst in the end.\nLast in the end."
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    arm = replace(settings.arm if is_model else Arm(), length=8)
    trial = result_of(run(replace(settings, arm=arm, num_epochs=1, num_explained=2)))
    for one in trial.explanations:
        assert [part.is_read for part in one.parts] == [True] + [False] * (len(one.parts) - 1)
        assert [part.effect for part in one.parts[1:]] == [0.0] * (len(one.parts) - 1) != []
