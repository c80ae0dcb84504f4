"""Metrics of predictions with bootstrap intervals: their values if other documents, and other seeds, had been drawn.

Metrics are computed from sums over documents, so that documents can be resampled by weights. Documents of one unit,
such as copies or those of one author, are drawn together, since they are not independent.

Two documents, one of which is predicted correctly: the parts are [1, 0], the wholes [1, 1], and with the weights [1, 1]
the accuracy is 1 / 2; with [2, 0], the first document drawn twice, it is 2 / 2. F1 is such a ratio too, of twice the
correct items to the true and the predicted ones.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from longmlm.downstream.artifacts import LabelledSpan, Prediction, Score
from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.settings import TaskKind

MACRO = "macro-F1"
THRESHOLD = 0.5  # of a label's probability, where documents have several labels
NUM_RESAMPLES = 2000
SEED = 20_001
BLOCK_ENTRIES = 4_000_000  # weights that are held at once
INTERVAL = (2.5, 97.5)  # percentiles

Output = Float[np.ndarray, " labels"] | tuple[LabelledSpan, ...]  # the probability of each label, or spans
Values = Float[np.ndarray, "resamples metrics"]  # the first row is that of the documents as they are
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


def resampled(measures: Sequence[Ratios], units: Sequence[str]) -> list[Values]:
    """Returns the metrics of all documents, and those of 2,000 resamples, which are the same for every measure.

    `units` has the unit of each document. A metric that counts documents of a single unit is not defined in resamples:
    it would be the same in all of them.
    """
    numbers = np.unique(np.array(units, dtype=object), return_inverse=True)[1]
    blocks = [[each.values(weights) for each in measures] for weights in _weights(numbers)]
    by_measure = [np.concatenate(values) for values in zip(*blocks, strict=True)]
    for each, values in zip(measures, by_measure, strict=True):
        is_single = [len(np.unique(numbers[of_metric])) < 2 for of_metric in each.counted.T]  # noqa: PLR2004
        values[1:, is_single] = np.nan
    return by_measure


def averaged(values: Sequence[Values]) -> Values:
    """Returns the mean over seeds; with several, every resample of documents is one of the seeds too.

    The mean of n seeds drawn from n varies by (n - 1) / n as much as that of n new seeds, so its distance from the mean
    of all of them is multiplied by sqrt(n / (n - 1)). A seed for which a metric is not defined takes no part.
    """
    generator, num_seeds = np.random.default_rng(SEED), len(values)
    drawn = generator.integers(num_seeds, size=(NUM_RESAMPLES, num_seeds))
    counts = np.concatenate(
        [np.ones((1, num_seeds)), np.stack([(drawn == seed).sum(1) for seed in range(num_seeds)], 1)]
    )
    stacked = np.stack(values, axis=1)
    of_drawn, of_all = _mean(stacked, counts[:, :, None]), _mean(stacked, np.ones_like(counts)[:, :, None])
    return of_all + math.sqrt(num_seeds / max(1, num_seeds - 1)) * (of_drawn - of_all)


def scores(names: Sequence[str], values: Values) -> list[Score]:
    """Returns each metric with its value and the interval from the 2.5th to the 97.5th percentile of the resamples."""
    computed = []
    for name, column in zip(names, values.T, strict=True):
        mean, drawn = column[0], column[1:][~np.isnan(column[1:])]
        if np.isnan(mean) or not len(drawn):
            computed.append(Score(metric=name, mean=None if np.isnan(mean) else float(mean), low=None, high=None))
            continue
        low, high = np.percentile(drawn, INTERVAL)
        computed.append(Score(metric=name, mean=float(mean), low=float(low), high=float(high)))
    return computed


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


def _mean(
    stacked: Float[np.ndarray, "resamples seeds metrics"], counts: Float[np.ndarray, "resamples seeds 1"]
) -> Values:
    weights = counts * ~np.isnan(stacked)
    sums = (weights * np.nan_to_num(stacked)).sum(axis=1)
    return np.divide(sums, weights.sum(axis=1), out=np.full(sums.shape, np.nan), where=weights.sum(axis=1) > 0)


def _weights(units: Int64[np.ndarray, " documents"]) -> Iterator[Float[np.ndarray, "resamples documents"]]:
    """Yields how often each document occurs: once, then in each resample, some of them at a time."""
    num_units = int(units.max(initial=-1)) + 1
    yield np.ones((1, len(units)))
    generator = np.random.default_rng(SEED)
    rows = max(1, BLOCK_ENTRIES // max(1, len(units)))
    for first in range(0, NUM_RESAMPLES, rows):
        size = (min(rows, NUM_RESAMPLES - first), num_units)
        drawn = generator.integers(num_units, size=size) + num_units * np.arange(size[0])[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size[0] * num_units).reshape(size)
        yield counts[:, units].astype(np.float64)
