"""Explanations of the longest test documents, for each kind of task."""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import numpy as np

from longmlm.artifacts.downstream import Explanation, Prediction
from longmlm.batches.examples import Example
from longmlm.data.labelled import LabelledCorpus
from longmlm.evaluation.occlusion import occlusion, span_outcomes
from longmlm.settings.downstream import TaskKind


def explanations_of(
    kind: TaskKind,
    corpus: LabelledCorpus,
    predictions: Mapping[int, Prediction],
    examples: Sequence[Example],
    probabilities: Callable[[Sequence[str]], np.ndarray],
    characters_read: Callable[[str], np.ndarray],
) -> tuple[Explanation, ...]:
    """Returns explanations of predictions, which are by the document's number.

    `examples` are those of all documents. `probabilities` returns those of the labels for each of some texts, (texts,
    labels); `characters_read`, start and end of each span that the arm reads of a text. Similarities are not explained.
    """
    documents = corpus.documents
    match kind:
        case "classification":
            return tuple(
                occlusion(
                    documents[number],
                    prediction,
                    corpus.labels,
                    probabilities,
                    characters_read(documents[number].text),
                )
                for number, prediction in predictions.items()
            )
        case "labelling":
            return tuple(
                span_outcomes(documents[number], prediction, _offsets_read(examples[number]))
                for number, prediction in predictions.items()
            )
        case "similarity":
            return ()
        case _:
            assert_never(kind)


def _offsets_read(example: Example) -> np.ndarray:
    """Returns the characters of the document's tokens that are in an input."""
    assert example.offsets is not None
    assert example.token_indices is not None
    return example.offsets[np.unique(example.token_indices[example.token_indices >= 0])]
