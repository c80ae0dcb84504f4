"""Bootstrap over documents: the values of metrics if other documents, and other seeds, had been drawn.

Documents of one unit, such as copies or those of one author, are drawn together, since they are not independent.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int64

from longmlm.downstream.artifacts import Score
from longmlm.downstream.scores import Ratios

NUM_RESAMPLES = 2000
SEED = 20_001
BLOCK_ENTRIES = 4_000_000  # weights that are held at once
INTERVAL = (2.5, 97.5)  # percentiles

Values = Float[np.ndarray, "resamples metrics"]  # the first row is that of the documents as they are


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


def _mean(
    stacked: Float[np.ndarray, "resamples seeds metrics"], counts: Float[np.ndarray, "resamples seeds 1"]
) -> Values:
    weights = counts * ~np.isnan(stacked)
    sums = (weights * np.nan_to_num(stacked)).sum(axis=1)
    return np.divide(sums, weights.sum(axis=1), out=np.full(sums.shape, np.nan), where=weights.sum(axis=1) > 0)


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
