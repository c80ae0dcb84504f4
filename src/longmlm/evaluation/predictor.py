"""What a trial measures on a fitted model (an encoder or TF-IDF): test predictions, their cost, and explanations."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from numpy import ndarray

from longmlm.artifacts.downstream import DownstreamTrial, Prediction, TrialCost
from longmlm.data.folds import Fold, units_of
from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.errors import counted
from longmlm.evaluation.occlusion import longest_documents
from longmlm.evaluation.task_explanations import explanations_of
from longmlm.runtime.launch import peak_memory_bytes
from longmlm.settings.downstream import DownstreamTrialConfig


@runtime_checkable
class Predictor(Protocol):
    """A fitted model that predicts the labels, the spans or the similarity of documents."""

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        ...

    def predictions(self, documents: Sequence[LabelledDocument]) -> tuple[Prediction, ...]:
        """Returns the predicted labels, spans or score of each document."""
        ...

    def probabilities(self, texts: Sequence[str]) -> Float[ndarray, "texts labels"]:
        """Returns the probability of each label for each text to classify."""
        ...

    def characters_read(self, text: str) -> Int64[ndarray, "parts 2"]:
        """Returns the first and end character of each part of a text, such as a token, that the model reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """A fitted model, its development scores in percent, and what fitting it took.

    `length` is how many tokens one of its inputs may have, without special tokens; None for TF-IDF. Prediction is timed
    unless it reads vectors that another trial computed.
    """

    predictor: Predictor
    dev_scores: tuple[float, ...] = ()
    seconds: float = 0.0
    tokens_per_second: float | None = None
    peak_memory_bytes: int = 0
    length: int | None = None
    is_timed: bool = True


def trial_result(
    fitted: FitResult, config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold
) -> DownstreamTrial:
    """Measures a fitted model on the test documents, and returns the content of trial.json."""
    predictor = fitted.predictor
    test = [corpus.documents[number] for number in fold.test]
    predictor.predictions(test[:1])  # the first pass is slower
    peak_bytes = peak_memory_bytes()
    uses_cuda = torch.cuda.is_initialized()  # TF-IDF never initialises it
    if uses_cuda:
        torch.cuda.reset_peak_memory_stats()
    since = time.monotonic()
    predictions = predictor.predictions(test)
    seconds = time.monotonic() - since
    inference_bytes = peak_memory_bytes()
    explained = explained_predictions(config, corpus, fold, predictions)
    if explained:
        print(f"explaining {counted(len(explained), 'test document')}")
    return DownstreamTrial(
        arm=config.arm_name,
        values=config.values,
        seed=config.seed,
        fold=config.fold,
        settings_sha256=config.settings_sha256,
        dev_scores=fitted.dev_scores,
        predictions=with_units(predictions, corpus),
        cost=TrialCost(
            train_tokens_per_second=fitted.tokens_per_second,
            train_seconds=fitted.seconds,
            documents_per_second=len(test) / seconds if fitted.is_timed else None,
            peak_memory_bytes=max(peak_bytes, inference_bytes, fitted.peak_memory_bytes),
            num_parameters=predictor.num_parameters,
            inference_memory_bytes=inference_bytes if uses_cuda else None,
        ),
        explanations=explanations_of(
            config.task.kind, corpus, explained, predictor.probabilities, predictor.characters_read
        ),
        length=fitted.length,
    )


def explained_predictions(
    config: DownstreamTrialConfig, corpus: LabelledCorpus, fold: Fold, predictions: Sequence[Prediction]
) -> dict[int, Prediction]:
    """Returns the predictions that are explained, by the document's number."""
    by_number = dict(zip(fold.test, predictions, strict=True))
    chosen = longest_documents(corpus.documents, fold.test, config.num_explained)
    return {number: by_number[number] for number in chosen}


def with_units(predictions: Sequence[Prediction], corpus: LabelledCorpus) -> tuple[Prediction, ...]:
    """Returns the predictions with the unit of each document: the id of the first one that shares its text or group."""
    documents = corpus.documents
    units = {documents[number].id: documents[unit[0]].id for unit in units_of(documents) for number in unit}
    return tuple(replace(prediction, unit=units[prediction.document]) for prediction in predictions)
