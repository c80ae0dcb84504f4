"""Predictions of labelled documents from a model's outputs, for each kind of task."""

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from longmlm.artifacts.downstream import Prediction
from longmlm.batches.examples import Example
from longmlm.data.labelled import LabelledCorpus
from longmlm.evaluation.spans import labelled
from longmlm.scoring.scores import predicted_labels
from longmlm.settings.downstream import TaskKind


def predictions_of(
    kind: TaskKind, corpus: LabelledCorpus, examples: Sequence[Example], outputs: Sequence[np.ndarray]
) -> tuple[Prediction, ...]:
    """Returns the predictions that follow from `TaskObjective.outputs` of the examples."""
    match kind:
        case "classification":
            return tuple(classified(corpus, *pair) for pair in zip(examples, outputs, strict=True))
        case "labelling":
            return tuple(labelled(corpus, *pair) for pair in zip(examples, outputs, strict=True))
        case "similarity":
            return tuple(pair_prediction(corpus, *pair) for pair in zip(examples, outputs, strict=True))
        case _:
            assert_never(kind)


def classified(corpus: LabelledCorpus, example: Example, probabilities: np.ndarray) -> Prediction:
    """Returns the predicted labels of a document, and the probabilities of all labels."""
    document = corpus.documents[example.document]
    return Prediction(
        document=document.id,
        num_tokens=example.num_tokens,
        labels=document.labels,
        predicted=predicted_labels(probabilities, corpus.labels, corpus.is_multilabel),
        probabilities=tuple(probabilities.tolist()),
    )


def pair_prediction(corpus: LabelledCorpus, example: Example, cosine: np.ndarray) -> Prediction:
    """Returns the score of a pair, and the cosine of its texts' vectors."""
    document = corpus.documents[example.document]
    return Prediction(
        document=document.id, num_tokens=example.num_tokens, score=document.score, predicted_score=cosine.item()
    )
