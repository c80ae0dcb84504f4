"""Metrics of predictions, from sums over documents, so that documents can be resampled by weights.

Of two documents, one is predicted correctly: the parts are [1, 0], the wholes [1, 1], and with the weights [1, 1] the
accuracy is 1 / 2; with [2, 0], the first document drawn twice, it is 2 / 2. F1 is such a ratio too, of twice the
correct items to the true and the predicted ones. Spans are the items of a document in labelling, else its labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from longmlm.downstream.artifacts import LabelledSpan, Prediction, Target
from longmlm.downstream.documents import LabelledCorpus
from longmlm.experiments.intervals import Values, Weights, divided

MACRO = "macro-F1"
METRICS: dict[Target, tuple[str, ...]] = {  # the main one first
    "label": ("accuracy", MACRO),
    "labels": ("micro-F1", "accuracy", MACRO),
    "spans": ("entity F1", "precision", "recall", MACRO),
}
THRESHOLD = 0.5  # of a label's probability, where documents have several labels

Output = Float[np.ndarray, " labels"] | tuple[LabelledSpan, ...]  # the probability of each label, or spans
Table = Float[np.ndarray, "documents metrics"]


@dataclass(frozen=True, slots=True)
class Ratios:
    """Metrics that are ratios of sums over documents, in percent: those named, then the F1 of each label.

    If there are labels, the last metric named is the mean of theirs, macro-F1.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    parts: Table
    wholes: Table

    @property
    def counted(self) -> Bool[np.ndarray, "documents metrics"]:
        """Which documents each metric counts."""
        counted, num_names = self.wholes > 0, len(self.names)
        if self.labels:
            counted[:, num_names - 1] = counted[:, num_names:].any(axis=1)
        return counted

    def values(self, weights: Weights) -> Values:
        """Returns the metrics for each row of weights; NaN where the whole is nothing."""
        values, num_names = divided(weights @ self.parts, weights @ self.wholes), len(self.names)
        of_labels = values[:, num_names:]
        if self.labels:
            occur = ~np.isnan(of_labels)
            values[:, num_names - 1] = divided(np.where(occur, of_labels, 0.0).sum(axis=1), occur.sum(axis=1))
        return 100 * values


def ratios_of(
    predictions: Mapping[str, Prediction], documents: Sequence[str], labels: Sequence[str], target: Target
) -> Ratios:
    """Returns the metrics of a task, the main one first; documents without a prediction take no part."""
    columns = {label: number for number, label in enumerate(labels)}
    both, true, predicted = counts = np.zeros((3, len(documents), len(labels)))
    is_known = np.array([document in predictions for document in documents], float)
    for number, document in enumerate(documents):
        if document in predictions:
            truth, found = {*predictions[document].truth}, {*predictions[document].predicted}
            for item in truth | found:
                label = item.label if isinstance(item, LabelledSpan) else item
                counts[:, number, columns[label]] += item in truth & found, item in truth, item in found
    num_both, num_true, num_predicted = counts.sum(axis=2)
    is_exact = is_known * (num_both == num_true) * (num_both == num_predicted)
    measured = {
        "accuracy": (is_exact, is_known),
        "micro-F1": (2 * num_both, num_true + num_predicted),
        "entity F1": (2 * num_both, num_true + num_predicted),
        "precision": (num_both, num_predicted),
        "recall": (num_both, num_true),
        MACRO: (0 * num_both, 0 * num_both),  # the mean over labels, once they are summed
    }
    names = METRICS[target]
    parts, wholes = (np.stack([measured[name][side] for name in names], axis=1) for side in (0, 1))
    of_labels = (2 * both, true + predicted)
    parts, wholes = (np.hstack(pair) for pair in zip((parts, wholes), of_labels, strict=True))
    return Ratios(names, tuple(labels), parts, wholes)


def main_score(predictions: Sequence[Prediction], corpus: LabelledCorpus) -> float:
    """Returns the main metric in percent, 0 if it is undefined: accuracy, micro-F1 of several labels, or entity F1."""
    by_document = {prediction.document: prediction for prediction in predictions}
    ratios = ratios_of(by_document, [*by_document], corpus.labels, corpus.target)
    value = ratios.values(np.ones((1, len(by_document))))[0, 0]
    return 0.0 if np.isnan(value) else float(value)


def predictions_of(corpus: LabelledCorpus, numbers: Sequence[int], outputs: Sequence[Output]) -> list[Prediction]:
    """Returns the predictions of documents: the likeliest label, or those with a probability of at least a half."""
    predictions = []
    for number, output in zip(numbers, outputs, strict=True):
        document, unit = corpus.documents[number], corpus.documents[corpus.units[number]].id
        if isinstance(output, tuple):
            found, probabilities = output, ()
        else:
            chosen = np.flatnonzero(output >= THRESHOLD) if corpus.target == "labels" else [output.argmax()]
            found, probabilities = tuple(corpus.labels[int(label)] for label in chosen), tuple(output.tolist())
        known = {"document": document.id, "unit": unit, "truth": document.truth}
        predictions.append(Prediction(**known, predicted=found, probabilities=probabilities))
    return predictions
