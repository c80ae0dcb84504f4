"""Explanations of the longest test documents, for each kind of task."""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import numpy as np

from longmlm.artifacts.downstream import Explanation, Prediction
from longmlm.data.labelled import LabelledCorpus
from longmlm.evaluation.occlusion import occlusion, span_outcomes
from longmlm.settings.downstream import TaskKind


def explanations_of(
    kind: TaskKind,
    corpus: LabelledCorpus,
    predictions: Mapping[int, Prediction],
    probabilities: Callable[[Sequence[str]], np.ndarray],
    characters_read: Callable[[str], np.ndarray],
) -> tuple[Explanation, ...]:
    """Returns explanations of predictions, which are by the document's number.

    `probabilities` returns the label probabilities of texts, (texts, labels); `characters_read` returns the start and
    end of each part of a text that the arm reads. Similarities are not explained.
    """
    explained = [(corpus.documents[number], prediction) for number, prediction in predictions.items()]
    match kind:
        case "classification":
            return tuple(
                occlusion(document, prediction, corpus.labels, probabilities, characters_read(document.text))
                for document, prediction in explained
            )
        case "labelling":
            return tuple(
                span_outcomes(document, prediction, characters_read(document.text))
                for document, prediction in explained
            )
        case "similarity":
            return ()
        case _:
            assert_never(kind)
