"""Bootstrap intervals of metrics: their values if other units, such as documents, and other seeds had been drawn.

Metrics are computed from weights of documents, so that these can be resampled. Documents of one unit, such as copies or
those of one author, are drawn together, since they are not independent. All arms have the same resamples: differences
are paired.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int64

NUM_RESAMPLES = 2000
SEED = 20_001
BLOCK_ENTRIES = 4_000_000  # weights that are held at once
INTERVAL = (2.5, 97.5)  # percentiles

Weights = Float[np.ndarray, "resamples documents"]
Values = Float[np.ndarray, "resamples metrics"]  # the first row is that of the documents as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric in percent, or a difference in percentage points, averaged over seeds, with a 95 % interval.

    All three are None where no document has what the metric counts, `low` and `high` also where all are one unit.
    """

    metric: str
    mean: float | None
    low: float | None
    high: float | None

    @property
    def numbers(self) -> tuple[float | None, float | None, float | None]:
        """The mean and both ends of its interval."""
        return self.mean, self.low, self.high

    @property
    def sign(self) -> int:
        """1 or -1 if the interval lies above or below zero, else 0."""
        return ((self.low or 0.0) > 0) - ((self.high or 0.0) < 0)


@runtime_checkable
class Metrics(Protocol):
    """What was measured on documents: metrics, and which documents each of them counts."""

    @property
    def counted(self) -> Bool[np.ndarray, "documents metrics"]:
        """Which documents each metric counts."""
        ...

    def values(self, weights: Weights) -> Values:
        """Returns the metrics for each row of weights; NaN where nothing is counted."""
        ...


def resampled(measures: Sequence[Metrics], units: Sequence[str]) -> list[Values]:
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
    """Returns the mean over seeds; with several, each resample of documents also resamples the seeds.

    The mean of n seeds drawn from n has (n - 1) / n times the variance of that of n new seeds, so its distance from the
    mean of all of them is multiplied by sqrt(n / (n - 1)). A seed for which a metric is not defined is left out.
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
        drawn = column[1:][~np.isnan(column[1:])]
        mean = None if np.isnan(column[0]) else float(column[0])
        low, high = (None, None) if mean is None or not len(drawn) else map(float, np.percentile(drawn, INTERVAL))
        computed.append(Score(metric=name, mean=mean, low=low, high=high))
    return computed


def divided(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Returns the ratios, NaN where the whole is nothing."""
    return np.divide(parts, wholes, out=np.full(np.shape(parts), np.nan), where=wholes > 0)


def _mean(
    stacked: Float[np.ndarray, "resamples seeds metrics"], counts: Float[np.ndarray, "resamples seeds 1"]
) -> Values:
    weights = counts * ~np.isnan(stacked)
    return divided((weights * np.nan_to_num(stacked)).sum(axis=1), weights.sum(axis=1))


def _weights(units: Int64[np.ndarray, " documents"]) -> Iterator[Weights]:
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
