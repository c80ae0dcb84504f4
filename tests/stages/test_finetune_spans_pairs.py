"""Trials that label spans, and trials that compare texts, on documents that a tiny model can learn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

from longmlm.artifacts.downstream import DownstreamTrial
from longmlm.data.folds import folds_of
from longmlm.data.labelled import read_labelled
from longmlm.errors import DataError, TrainingError
from longmlm.scoring.scores import main_score
from longmlm.settings.downstream import DownstreamTrialConfig
from tests.support.finetuning import LENGTH, RUNTIME, elsewhere, labelling, model, result_of, run, settings, similarity

__all__ = ["labelling", "model", "run", "settings", "similarity"]

Run = Callable[[DownstreamTrialConfig], Path]


def score_of(config: DownstreamTrialConfig, trial: DownstreamTrial) -> float:
    return main_score(trial.predictions, config.task.kind, is_multilabel=False)


def test_spans_are_learnt_in_windows_and_the_model_loads_in_transformers(
    labelling: DownstreamTrialConfig, run: Run
) -> None:
    folder = run(labelling)
    trial = result_of(folder)
    assert score_of(labelling, trial) > 95 and max(trial.dev_scores) > 95 and trial.length == LENGTH - 2
    assert min(one.num_tokens for one in trial.predictions) < LENGTH < max(one.num_tokens for one in trial.predictions)
    documents = {document.id: document for document in read_labelled(labelling.task).documents}
    assert all(one.spans == documents[one.document].spans for one in trial.predictions)
    stock = AutoModelForTokenClassification.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert [*stock.config.id2label.values()] == ["O", "B-blue", "I-blue", "B-red", "I-red"]
    short = next(one for one in trial.predictions if one.num_tokens <= LENGTH - 2 and one.predicted_spans)
    encoded = tokenizer(documents[short.document].text, return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        classes = stock(**encoded).logits[0].argmax(-1).tolist()
    names = [stock.config.id2label[index] for index in classes]
    of_text = [(start, name) for (start, end), name in zip(offsets, names, strict=True) if end > start]
    assert [start for start, name in of_text if name.startswith("B")] == [span.start for span in short.predicted_spans]


def test_spans_beyond_the_length_are_not_found(labelling: DownstreamTrialConfig, run: Run) -> None:
    trial = result_of(run(replace(labelling, arm=replace(labelling.arm, reads="first"), num_explained=1)))
    found = {"read": 0, "beyond": 0}
    for one in trial.predictions:
        for span, token in zip(one.spans, one.token_starts, strict=False):
            place = "read" if token < LENGTH - 2 else "beyond"
            if place == "beyond":
                assert span not in one.predicted_spans
            found[place] += span in one.predicted_spans or place == "beyond"
    assert found["read"] > 20 and found["beyond"] > 20
    (explanation,) = trial.explanations
    assert {span.is_read for span in explanation.spans} == {True, False}


def test_similarity_is_learnt_and_the_model_loads_in_transformers(similarity: DownstreamTrialConfig, run: Run) -> None:
    frozen = elsewhere(similarity, "frozen", arm=replace(similarity.arm, frozen=True))
    untuned = result_of(run(frozen))
    assert untuned.dev_scores == () and untuned.values == {} and not (Path(frozen.folder) / "model").exists()
    folder = run(similarity)
    tuned = result_of(folder)
    assert len(tuned.dev_scores) == similarity.num_epochs
    assert [one.document for one in tuned.predictions] == [one.document for one in untuned.predictions]
    assert score_of(similarity, tuned) > max(60, score_of(similarity, untuned) + 30)
    documents = {document.id: document for document in read_labelled(similarity.task).documents}
    for name, trial in ((str(folder / "model"), tuned), (str(similarity.arm.model), untuned)):
        stock, tokenizer = AutoModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
        for one in trial.predictions:
            texts = documents[one.document].text, documents[one.document].second_text
            with torch.inference_mode():
                vectors = [stock(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1) for text in texts]
            assert one.score == documents[one.document].score
            assert one.predicted_score == pytest.approx(cosine_similarity(*vectors).item(), abs=1e-4)


def test_a_pair_needs_another_one_in_its_micro_batch(similarity: DownstreamTrialConfig, run: Run) -> None:
    with pytest.raises(TrainingError, match="at least 2 pairs in every micro-batch"):
        run(replace(similarity, runtime=replace(RUNTIME, rows_per_micro_batch=1)))
    with pytest.raises(TrainingError, match="raise recipe.documents_per_step, which is 1"):
        run(replace(similarity, recipe=replace(similarity.recipe, documents_per_step=1)))


def test_pairs_without_a_high_score_cannot_be_tuned_on(similarity: DownstreamTrialConfig, run: Run) -> None:
    (file,) = similarity.task.data.files
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    low = [line for line in lines if '"label": 5' not in line]
    high = next(line for line in lines if '"label": 5' in line)
    kept = [line.replace('"label": 2', '"label": 1') for line in low]
    Path(file).write_text("\n".join([*kept, high]), encoding="utf-8")
    with pytest.raises(DataError, match="with a score above 2.5: tuning needs at least 2"):
        run(replace(similarity, seed=seed_with(similarity, "p1")))


def seed_with(config: DownstreamTrialConfig, document: str) -> int:
    """Returns a seed that puts this document into training."""
    corpus = read_labelled(config.task)
    number = [one.id for one in corpus.documents].index(document)
    return next(seed for seed in range(20) if number in folds_of(corpus, config.task, seed)[0].train)
