"""Metrics of predictions, computed from sums over documents, so that documents can be resampled by weights.

Two documents, one of which is predicted correctly: the parts are [1, 0], the wholes [1, 1], and with the weights [1, 1]
the accuracy is 1 / 2; with [2, 0], the first document drawn twice, it is 2 / 2. F1 is such a ratio too, of twice the
correct items to the true and the predicted ones.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, assert_never

import numpy as np
from jaxtyping import Bool, Float

from longmlm.artifacts.downstream import DEFAULT_LENGTH, Prediction
from longmlm.settings.downstream import TaskKind

NUM_POSITIONS = 9  # bins of distances into the document, the last of which is open
CUT_STARTS = (0, 16, 64, 128, 256, 512)  # of bins of distances from a cut
MACRO = "macro-F1"
THRESHOLD = 0.5  # of a label's probability, where documents have several labels

Group = Literal["score", "label", "position", "cut"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: whether it is of everything, of one label, or of one bin of distances; and its name in this group."""

    group: Group
    name: str


@dataclass(frozen=True, slots=True)
class Ratios:
    """Metrics that are ratios of sums over documents, in percent; macro-F1 is the mean of those of the labels."""

    metrics: tuple[Metric, ...]
    parts: Float[np.ndarray, "documents metrics"]
    wholes: Float[np.ndarray, "documents metrics"]

    @property
    def counted(self) -> Bool[np.ndarray, "documents metrics"]:
        """Which documents each metric counts."""
        counted = self.wholes > 0
        labels = [number for number, metric in enumerate(self.metrics) if metric.group == "label"]
        if labels:
            counted[:, self.metrics.index(Metric("score", MACRO))] = counted[:, labels].any(axis=1)
        return counted

    def values(self, weights: Float[np.ndarray, "resamples documents"]) -> Float[np.ndarray, "resamples metrics"]:
        """Returns the metrics for each row of weights; NaN where the whole is nothing."""
        values = _divided(weights @ self.parts, weights @ self.wholes)
        labels = [number for number, metric in enumerate(self.metrics) if metric.group == "label"]
        if labels:
            of_labels = values[:, labels]
            occur = ~np.isnan(of_labels)
            mean = _divided(np.where(occur, of_labels, 0.0).sum(axis=1), occur.sum(axis=1))
            values[:, self.metrics.index(Metric("score", MACRO))] = mean
        return 100 * values


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Spearman's correlation of true and predicted scores of documents, of which some are not present."""

    truth: Float[np.ndarray, " documents"]
    predicted: Float[np.ndarray, " documents"]
    is_present: Bool[np.ndarray, " documents"]
    metrics: tuple[Metric, ...] = (Metric("score", "Spearman"),)

    @property
    def counted(self) -> Bool[np.ndarray, "documents 1"]:
        """Which documents are present."""
        return self.is_present[:, None]

    def values(self, weights: Float[np.ndarray, "resamples documents"]) -> Float[np.ndarray, "resamples 1"]:
        """Returns 100 times the correlation of mean ranks, NaN where all scores are equal."""
        weights = weights * self.is_present
        total = weights.sum(axis=1, keepdims=True)
        one, other = (_ranks(scores, weights) for scores in (self.truth, self.predicted))
        one, other = (ranks - _divided((weights * ranks).sum(axis=1, keepdims=True), total) for ranks in (one, other))
        covariance, *variances = ((weights * a * b).sum(axis=1) for a, b in ((one, other), (one, one), (other, other)))
        return 100 * _divided(covariance, np.sqrt(variances[0] * variances[1]))[:, None]


Measure = Ratios | RankCorrelation
Count = tuple[Metric, int, int]  # what a document adds to part and whole of a metric


def metrics_of(
    predictions: Mapping[str, Prediction],
    documents: Sequence[str],
    labels: Sequence[str],
    kind: TaskKind,
    is_multilabel: bool,
    length: int = DEFAULT_LENGTH,
) -> Measure:
    """Returns the metrics of a task, the main one first; documents without a prediction take no part.

    Spans are counted by where they begin: in which `length` tokens of the document, and how far from a cut.
    """
    rows = [predictions.get(document) for document in documents]
    of_labels = tuple(Metric("label", label) for label in labels)
    match kind:
        case "classification":
            names = ("micro-F1", "accuracy", MACRO) if is_multilabel else ("accuracy", MACRO)
            counts = [[*_class_counts(row, labels)] if row else [] for row in rows]
            return _ratios((*(Metric("score", name) for name in names), *of_labels), counts)
        case "labelling":
            names = ("entity F1", "precision", "recall", MACRO, recall_beyond(length))
            positions = (Metric("position", name) for name in bin_names(position_starts(length)))
            cuts = (Metric("cut", name) for name in bin_names(CUT_STARTS))
            counts = [[*_span_counts(row, length)] if row else [] for row in rows]
            return _ratios((*(Metric("score", name) for name in names), *of_labels, *positions, *cuts), counts)
        case "similarity":
            truth = np.array([row.score if row else 0.0 for row in rows], np.float64)
            predicted = np.array([row.predicted_score if row else 0.0 for row in rows], np.float64)
            return RankCorrelation(truth, predicted, np.array([row is not None for row in rows], bool))
        case _:
            assert_never(kind)


def predicted_labels(
    probabilities: Float[np.ndarray, " labels"], labels: Sequence[str], is_multilabel: bool
) -> tuple[str, ...]:
    """Returns the likeliest label or, where documents have several, those with a probability of at least a half."""
    chosen = np.flatnonzero(probabilities >= THRESHOLD) if is_multilabel else [probabilities.argmax()]
    return tuple(labels[int(number)] for number in chosen)


def main_metric(kind: TaskKind, is_multilabel: bool) -> str:
    """Returns the name of the main metric of a task."""
    return metrics_of({}, (), (), kind, is_multilabel).metrics[0].name


def main_score(predictions: Sequence[Prediction], kind: TaskKind, is_multilabel: bool) -> float:
    """Returns the main metric of a task in percent; 0 where it is not defined.

    It is the accuracy, with several labels per document the micro-F1; the F1 of entities; Spearman's correlation.
    """
    by_document = {prediction.document: prediction for prediction in predictions}
    metrics = metrics_of(by_document, [*by_document], (), kind, is_multilabel)
    value = metrics.values(np.ones((1, len(by_document))))[0, 0]
    return 0.0 if np.isnan(value) else float(value)


def _ratios(metrics: tuple[Metric, ...], counts: Sequence[Sequence[Count]]) -> Ratios:
    """Returns the sums of the counts of each document; those of metrics that are not listed are left out."""
    columns = {metric: number for number, metric in enumerate(metrics)}
    parts, wholes = np.zeros((len(counts), len(metrics))), np.zeros((len(counts), len(metrics)))
    for number, of_document in enumerate(counts):
        for metric, part, whole in of_document:
            if (column := columns.get(metric)) is not None:
                parts[number, column] += part
                wholes[number, column] += whole
    return Ratios(metrics, parts, wholes)


def _class_counts(row: Prediction, labels: Sequence[str]) -> Iterator[Count]:
    truth, predicted = {*row.labels}, {*row.predicted}
    yield Metric("score", "accuracy"), truth == predicted, 1
    yield Metric("score", "micro-F1"), 2 * len(truth & predicted), len(truth) + len(predicted)
    for label in (truth | predicted).intersection(labels):
        is_true, is_predicted = label in truth, label in predicted
        yield Metric("label", label), 2 * (is_true and is_predicted), is_true + is_predicted


def _span_counts(row: Prediction, length: int) -> Iterator[Count]:
    spans, predicted = (*row.spans, *row.predicted_spans), {*row.predicted_spans}
    distances = row.cut_distances or (-1,) * len(spans)
    for number, (span, token, distance) in enumerate(zip(spans, row.token_starts, distances, strict=True)):
        is_true = number < len(row.spans)
        is_found = is_true and span in predicted
        for metric in _f1_metrics(span.label, token, distance, length):
            yield metric, 2 * is_found, 1
        yield Metric("score", "precision"), is_found, not is_true
        yield Metric("score", "recall"), is_found, is_true
        if is_true and token >= length:
            yield Metric("score", recall_beyond(length)), is_found, 1


def _f1_metrics(label: str, token: int, distance: int, length: int) -> Iterator[Metric]:
    """Yields the F1 scores that count a span of this label, which begins at this token, at a distance from a cut."""
    yield Metric("score", "entity F1")
    yield Metric("label", label)
    yield Metric("position", _bin_name(position_starts(length), token))
    if distance >= 0:
        yield Metric("cut", _bin_name(CUT_STARTS, distance))


def recall_beyond(length: int) -> str:
    """Returns the name of the metric that counts only the true spans after the first `length` tokens."""
    return f"recall beyond token {length}"


def position_starts(length: int) -> tuple[int, ...]:
    """Returns where each bin of distances into the document starts."""
    return tuple(range(0, NUM_POSITIONS * length, length))


def bin_names(starts: Sequence[int]) -> tuple[str, ...]:
    """Returns first and last value of each bin; the last bin is open."""
    return (*(f"{start}–{end - 1}" for start, end in pairwise(starts)), f"{starts[-1]}+")


def _bin_name(starts: Sequence[int], value: int) -> str:
    return bin_names(starts)[bisect_right(starts, value) - 1]


def _divided(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    return np.divide(parts, wholes, out=np.full(np.shape(parts), np.nan), where=wholes > 0)


def _ranks(
    scores: Float[np.ndarray, " documents"], weights: Float[np.ndarray, "resamples documents"]
) -> Float[np.ndarray, "resamples documents"]:
    """Returns the mean rank of each document's score, up to a constant, if each document occurs as its weight says."""
    _, tied = np.unique(scores, return_inverse=True)
    order = np.argsort(tied, kind="stable")
    starts = np.searchsorted(tied[order], np.arange(tied.max(initial=-1) + 1))
    sums = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(sums, axis=1) - sums / 2)[:, tied]
