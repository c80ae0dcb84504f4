"""The process of a trial, on documents that a tiny model can learn."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.artifacts.provenance import read_provenance
from longmlm.downstream import arm_model, models, tuning
from longmlm.downstream.arm_model import load_arm_model
from longmlm.downstream.artifacts import DownstreamTrial, LabelledSpan
from longmlm.downstream.documents import read_labelled
from longmlm.downstream.folds import fold_of
from longmlm.downstream.planned import TRAINING, TrialConfig
from longmlm.downstream.scores import main_score
from longmlm.downstream.settings import Arm, FinetuneRuntime, Tuning
from longmlm.errors import DataError, ModelError
from longmlm.folders import verify
from longmlm.hubs.model_files import model_sha256
from longmlm.model.architecture import set_dropout
from longmlm.model.loading import LoadedModel
from longmlm.settings.pretrain import ComputePrecision, Tracker
from tests.downstream.finetuning import LENGTH, Run, accuracy_of, labelling, model, result_of, run, settings
from tests.downstream.labelled import CUES, separable_file

__all__ = ["labelling", "model", "run", "settings"]


def test_a_separable_task_is_learnt_and_the_model_loads_in_transformers(settings: TrialConfig, run: Run) -> None:
    folder = run(settings)
    trial = result_of(folder)
    assert accuracy_of(trial) == max(trial.dev_scores) == 100
    assert len(trial.dev_scores) == settings.num_epochs
    assert trial.values == {"learning_rate": settings.learning_rate, "num_epochs": settings.num_epochs}
    corpus = read_labelled(settings.task)
    tested = [corpus.documents[number] for number in fold_of(corpus, settings.task, settings.seed, None).test]
    assert [one.document for one in trial.predictions] == [document.id for document in tested]
    assert [one.truth for one in trial.predictions] == [document.labels for document in tested]
    assert not (folder / TRAINING).exists()
    verify(folder / "model")
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tuple(stock.config.id2label.values()) == corpus.labels == tuple(sorted(CUES))
    with torch.inference_mode():
        for document, prediction in zip(tested, trial.predictions, strict=True):
            logits = stock(**tokenizer(document.text, truncation=True, return_tensors="pt")).logits
            assert logits.softmax(-1)[0].tolist() == pytest.approx(prediction.probabilities, abs=1e-4)
    assert read_provenance(folder / "model").started_from.name == settings.arm.model
    assert result_of(run(replace(settings, num_epochs=1))) == trial, "a finished trial is not run again"


def test_spans_are_learnt_in_windows_and_predicted_as_the_released_pipeline_does(
    labelling: TrialConfig, run: Run
) -> None:
    folder = run(labelling)
    trial = result_of(folder)
    assert main_score(trial.predictions, read_labelled(labelling.task)) > 95 and max(trial.dev_scores) > 95
    documents = {document.id: document for document in read_labelled(labelling.task).documents}
    assert all(one.truth == documents[one.document].spans for one in trial.predictions)
    stock = AutoModelForTokenClassification.from_pretrained(folder / "model").eval()
    assert [*stock.config.id2label.values()] == ["O", "B-blue", "I-blue", "B-red", "I-red"]
    options = {"aggregation_strategy": "simple", "stride": (LENGTH - 2) // 2}
    find = pipeline("token-classification", model=str(folder / "model"), device="cpu", **options)
    longest = max(trial.predictions, key=lambda one: len(documents[one.document].text))
    text = documents[longest.document].text
    assert len(find.tokenizer(text, truncation=False)["input_ids"]) > LENGTH == find.tokenizer.model_max_length
    found = [LabelledSpan(one["start"], one["end"], one["entity_group"]) for one in find(text)]
    assert tuple(found) == longest.predicted != ()


@pytest.mark.parametrize(
    "arm", [{}, {"reads": "chunks", "length": 12, "pooling": "lstm"}, {"reads": "last", "frozen": True}]
)
def test_by_default_a_trial_trains_in_what_auto_means_whatever_is_exported_for_accelerate(
    settings: TrialConfig,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    auto_precision: ComputePrecision,
    arm: dict[str, object],
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", {"no": "bf16", "bf16": "no"}[auto_precision])
    computed_in, forward = set(), torch.nn.Linear.forward

    def observed(layer: torch.nn.Linear, states: Tensor) -> Tensor:
        computed = forward(layer, states)
        if layer.training and torch.is_grad_enabled():
            computed_in.add(computed.dtype)
        return computed

    monkeypatch.setattr(torch.nn.Linear, "forward", observed)
    by_default = replace(settings.recipe, precision=Tuning().precision)
    folder = run(replace(settings, arm=replace(settings.arm, **arm), num_epochs=1, recipe=by_default))
    assert computed_in == {{"no": torch.float32, "bf16": torch.bfloat16}[auto_precision]}
    assert f"| precision | {auto_precision} |" in artifact.read(FineTuned, folder / FineTuned.FILE).training


def test_spans_beyond_the_length_are_not_found(labelling: TrialConfig, run: Run) -> None:
    trial = result_of(run(replace(labelling, arm=replace(labelling.arm, reads="first"), num_epochs=4)))
    last = [max(span.end for span in one.predicted) for one in trial.predictions if one.predicted]
    true = [max(span.end for span in one.truth) for one in trial.predictions if one.truth]
    assert 0 < max(last) < 6 * LENGTH < max(true)


@pytest.mark.parametrize("changed", ["documents", "model"])
def test_inputs_that_changed_since_the_command_started_are_refused(
    settings: TrialConfig, run: Run, tmp_path: Path, changed: str
) -> None:
    model = shutil.copytree(str(settings.arm.model), tmp_path / "model")
    settings = replace(
        settings,
        arm=Arm(model=str(model)),
        documents_sha256=read_labelled(settings.task).sha256,
        model_sha256=model_sha256(model),
    )
    path = tmp_path / "documents.jsonl" if changed == "documents" else model / "tokenizer_config.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace('"text": "', '"text": "More. ', 1) if changed == "documents" else f"{before}\n")
    with pytest.raises(DataError, match=rf"{changed} ha(ve|s) changed since the command started: run longmlm"):
        run(settings)
    assert not (tmp_path / "trial" / DownstreamTrial.FILE).exists()


@pytest.mark.parametrize("arm", [{"reads": "chunks", "length": 12, "pooling": "lstm"}, {"frozen": True}])
def test_a_trial_that_was_killed_ends_as_if_it_had_not_been(
    settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arm: dict[str, object]
) -> None:
    separable_file(Path(settings.task.data.files[0]), num_documents=40)
    settings = replace(settings, arm=replace(settings.arm, **arm), num_epochs=3)
    expected = result_of(run(settings, "uninterrupted"))
    folder, save = tmp_path / "trial", tuning._Tuner._save_checkpoint

    def dying(tuner: tuning._Tuner, *arguments: object) -> None:
        save(tuner, *arguments)
        if tuner.state.epoch == 2:
            newest = folder / TRAINING / f"checkpoint-{tuner.state.global_step}"
            (newest / tuning.STATE).unlink()  # as if killed while it was written
            raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(tuning._Tuner, "_save_checkpoint", dying)
        with pytest.raises(SystemExit):
            run(settings)
    assert not (folder / DownstreamTrial.FILE).exists() and (folder / TRAINING).is_dir()
    trial = result_of(run(settings))
    assert trial.predictions == expected.predictions and trial.dev_scores == expected.dev_scores


def without_dropout(*arguments: Any) -> LoadedModel:
    loaded = load_arm_model(*arguments)
    set_dropout(loaded.model, 0.0)
    return loaded


def test_the_size_of_micro_batches_changes_results_by_rounding_only(
    settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arm_model, "load_arm_model", without_dropout)
    separable_file(Path(settings.task.data.files[0]), num_documents=40)
    settings = replace(settings, num_epochs=2)
    chances = []
    for size in (1, 3):
        runtime = FinetuneRuntime(num_threads=1, documents_per_micro_batch=size)
        trial = result_of(run(replace(settings, runtime=runtime), f"by-{size}"))
        chances.append([chance for one in trial.predictions for chance in one.probabilities])
    assert chances[1] == pytest.approx(chances[0], abs=1e-3)


@pytest.mark.parametrize(
    ("patience", "scores", "ended_and_best"),
    [
        (2, [40.0, 60.0, 50.0, 59.0, 99.0, 99.0], (4, 1)),
        (4, [40.0, 60.0, 60.0, 50.0, 60.0, 50.0], (6, 4)),  # of equal epochs, the latest
        (1, [50.0, 50.0, 50.0, 99.0, 99.0, 99.0], (3, 2)),  # not after the second: half of the epochs come first
    ],
)
def test_training_ends_when_the_score_has_not_risen_for_a_while_and_the_best_epoch_is_tested(
    settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, patience: int, scores: list, ended_and_best: tuple
) -> None:
    separable_file(Path(settings.task.data.files[0]), num_documents=40)
    left, weights, (ended, best) = iter(scores), [], ended_and_best
    predict = arm_model.ArmModel.predict

    def watched(own: arm_model.ArmModel, numbers: Sequence[int]) -> list:
        weights.append(own.loaded.model.classifier.weight.detach().numpy().copy())
        return predict(own, numbers)

    monkeypatch.setattr(arm_model.ArmModel, "predict", watched)
    monkeypatch.setattr(tuning, "main_score", lambda *_: next(left))
    folder = run(replace(settings, recipe=replace(settings.recipe, patience=patience)))
    assert result_of(folder).dev_scores == tuple(scores[:ended])
    stock = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert np.array_equal(stock.classifier.weight.detach().numpy(), weights[1 + best])  # the first is before training


@pytest.mark.parametrize(
    "arm",
    [
        {"reads": "chunks", "length": 12, "pooling": "attention"},
        {"reads": "chunks", "length": 12, "pooling": "cnn", "frozen": True},
        {"reads": "last", "frozen": True},
    ],
)
def test_every_kind_of_arm_learns_and_a_frozen_encoder_stays_as_it_is(
    settings: TrialConfig, run: Run, arm: dict[str, object]
) -> None:
    num_epochs = 20 if "frozen" in arm else 8
    recipe = replace(settings.recipe, patience=num_epochs)
    folder = run(replace(settings, arm=replace(settings.arm, **arm), num_epochs=num_epochs, recipe=recipe))
    trial = result_of(folder)
    assert max(trial.dev_scores) > 80 and accuracy_of(trial) > 80
    if "frozen" in arm and arm["reads"] == "last":
        states = []
        for path in (str(settings.arm.model), folder / "model"):
            stock = AutoModelForSequenceClassification.from_pretrained(path)
            states.append({name: one for name, one in stock.bert.state_dict().items() if "pooler" not in name})
        assert len(states[0]) > 10
        assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())


def test_documents_with_several_labels(settings: TrialConfig, run: Run, tmp_path: Path) -> None:
    file = separable_file(tmp_path / "several.jsonl", is_multilabel=True)
    task = replace(settings.task, data=replace(settings.task.data, files=(str(file),)))
    folder = run(replace(settings, task=task, num_epochs=10))
    trial = result_of(folder)
    assert {len(one.truth) for one in trial.predictions} == {1, 2}
    assert accuracy_of(trial) > 80
    config = AutoModelForSequenceClassification.from_pretrained(folder / "model").config
    assert config.problem_type == "multi_label_classification"


def test_predictions_of_tfidf_name_the_unit_of_copies_and_groups(settings: TrialConfig, run: Run) -> None:
    file = Path(settings.task.data.files[0])
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps(record | {"author": f"author {number // 4}"}) for number, record in enumerate(records)]
    file.write_text("\n".join(lines), encoding="utf-8")
    task = replace(settings.task, data=replace(settings.task.data, group_field="author"))
    trial = result_of(run(replace(settings, task=task, arm=Arm(), learning_rate=None, num_epochs=None)))
    assert trial.values == {} and len(trial.dev_scores) == 1 and accuracy_of(trial) == 100
    groups = {document.id: document.group for document in read_labelled(task).documents}
    units = {one.document: one.unit for one in trial.predictions}
    assert len({*units.values()}) == len({groups[name] for name in units}) == len(units) / 4 > 1
    assert all(groups[unit] == groups[name] for name, unit in units.items())


def test_a_length_beyond_the_model_is_refused(settings: TrialConfig, run: Run) -> None:
    with pytest.raises(ModelError, match=r"reads 32 tokens, but arms.first.length is 33"):
        run(replace(settings, arm=replace(settings.arm, length=33)))


def test_a_frozen_encoder_stays_in_place_where_the_head_reads_more_than_the_first_token(
    settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = replace(settings, arm=replace(settings.arm, frozen=True))
    cached = result_of(run(frozen)).predictions
    monkeypatch.setattr(models._Remembered, "__call__", lambda *_, **__: (torch.zeros(1, 1, 16), torch.ones(1, 16)))
    found = result_of(run(frozen, "in-place")).predictions
    assert [one.document for one in found] == [one.document for one in cached]
    for one, other in zip(found, cached, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_trial_is_tracked(settings: TrialConfig, run: Run, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = run(replace(settings, num_epochs=1, tracking=Tracker(tracker=tracker)))
    assert any((folder / tracker).rglob("*")) and not (folder / TRAINING).exists()
