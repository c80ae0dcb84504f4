"""Metrics of predictions, computed from sums over documents, so that documents can be resampled by weights.

Two documents, one of which is predicted correctly: the parts are [1, 0], the wholes [1, 1], and with the weights [1, 1]
the accuracy is 1 / 2; with [2, 0], the first document drawn twice, it is 2 / 2. F1 is such a ratio too, of twice the
correct items to the true and the predicted ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from longmlm.downstream.artifacts import LabelledSpan, Prediction
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.settings import TaskKind

MACRO = "macro-F1"
THRESHOLD = 0.5  # of a label's probability, where documents have several labels

Output = Float[np.ndarray, " labels"] | tuple[LabelledSpan, ...]  # the probability of each label, or spans
Count = tuple[str, int, int]  # what a document adds to part and whole of a metric


@dataclass(frozen=True, slots=True)
class Ratios:
    """Metrics that are ratios of sums over documents, in percent: those named, then the F1 of each label.

    If there are labels, the last metric named is the mean of theirs, macro-F1.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    parts: Float[np.ndarray, "documents metrics"]
    wholes: Float[np.ndarray, "documents metrics"]

    @property
    def counted(self) -> Bool[np.ndarray, "documents metrics"]:
        """Which documents each metric counts."""
        counted, num_names = self.wholes > 0, len(self.names)
        if self.labels:
            counted[:, num_names - 1] = counted[:, num_names:].any(axis=1)
        return counted

    def values(self, weights: Float[np.ndarray, "resamples documents"]) -> Float[np.ndarray, "resamples metrics"]:
        """Returns the metrics for each row of weights; NaN where the whole is nothing."""
        values, num_names = _divided(weights @ self.parts, weights @ self.wholes), len(self.names)
        of_labels = values[:, num_names:]
        occur = ~np.isnan(of_labels)
        if self.labels:
            values[:, num_names - 1] = _divided(np.where(occur, of_labels, 0.0).sum(axis=1), occur.sum(axis=1))
        return 100 * values


def ratios_of(
    predictions: Mapping[str, Prediction],
    documents: Sequence[str],
    labels: Sequence[str],
    kind: TaskKind,
    is_multilabel: bool,
) -> Ratios:
    """Returns the metrics of a task, the main one first; documents without a prediction take no part."""
    names = metric_names(kind, is_multilabel)
    counts_of = _span_counts if kind == "labelling" else _class_counts
    columns = {name: number for number, name in enumerate((*names, *(f"label {label}" for label in labels)))}
    parts, wholes = np.zeros((len(documents), len(columns))), np.zeros((len(documents), len(columns)))
    for number, document in enumerate(documents):
        for name, part, whole in counts_of(predictions[document]) if document in predictions else ():
            if (column := columns.get(name)) is not None:
                parts[number, column] += part
                wholes[number, column] += whole
    return Ratios(names, tuple(labels), parts, wholes)


def metric_names(kind: TaskKind, is_multilabel: bool) -> tuple[str, ...]:
    """Returns the names of the metrics of a task, the main one first."""
    if kind == "labelling":
        return ("entity F1", "precision", "recall", MACRO)
    return ("micro-F1", "accuracy", MACRO) if is_multilabel else ("accuracy", MACRO)


def main_score(predictions: Sequence[Prediction], kind: TaskKind, is_multilabel: bool) -> float:
    """Returns the main metric in percent, 0 if it is undefined: accuracy, micro-F1 of several labels, or entity F1."""
    by_document = {prediction.document: prediction for prediction in predictions}
    ratios = ratios_of(by_document, [*by_document], (), kind, is_multilabel)
    value = ratios.values(np.ones((1, len(by_document))))[0, 0]
    return 0.0 if np.isnan(value) else float(value)


def predictions_of(corpus: LabelledCorpus, numbers: Sequence[int], outputs: Sequence[Output]) -> list[Prediction]:
    """Returns the predictions of documents: the likeliest label, or those with a probability of at least a half."""
    predictions = []
    for number, output in zip(numbers, outputs, strict=True):
        document, unit = corpus.documents[number], corpus.documents[corpus.units[number]].id
        if isinstance(output, tuple):
            spans = {"spans": document.spans, "predicted_spans": output}
            predictions.append(Prediction(document=document.id, unit=unit, **spans))
            continue
        chosen = np.flatnonzero(output >= THRESHOLD) if corpus.is_multilabel else [output.argmax()]
        predictions.append(
            Prediction(
                document=document.id,
                unit=unit,
                labels=document.labels,
                predicted=tuple(corpus.labels[int(label)] for label in chosen),
                probabilities=tuple(output.tolist()),
            )
        )
    return predictions


def _class_counts(row: Prediction) -> Iterator[Count]:
    truth, predicted = {*row.labels}, {*row.predicted}
    yield "accuracy", truth == predicted, 1
    yield "micro-F1", 2 * len(truth & predicted), len(truth) + len(predicted)
    for label in truth | predicted:
        is_true, is_predicted = label in truth, label in predicted
        yield f"label {label}", 2 * (is_true and is_predicted), is_true + is_predicted


def _span_counts(row: Prediction) -> Iterator[Count]:
    truth, predicted = {*row.spans}, {*row.predicted_spans}
    for is_true, spans in ((True, truth), (False, predicted)):
        for span in spans:
            is_found = span in truth & predicted
            yield "entity F1", is_found, 1
            yield f"label {span.label}", is_found, 1
            yield ("recall" if is_true else "precision"), is_found, 1


def _divided(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    return np.divide(parts, wholes, out=np.full(np.shape(parts), np.nan), where=wholes > 0)
