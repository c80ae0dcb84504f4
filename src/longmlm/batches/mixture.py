"""Sources in proportions that the user sets: the rows that follow a cursor are a pure function of seed and cursor.

Rows are drawn in blocks of 1,000, and each block has the same number of rows of a source. With blocks of 10, a source A
of 6 rows with weight 1 and a source B of 3 rows with weight 5, these numbers are as 6 * 1 to 3 * 5: 2.86 and 7.14 of
10, rounded by the largest remainder to 3 and 7. A permutation of 0 to 9 orders each block. In block 2, the third one:

    value 1 is below 3: draw 2 * 3 + 1 = 7 of A, so 7 = 1 * 6 + 1 is row permuted(1) of its epoch 1
    value 5 is above: draw 2 * 7 + 5 - 3 = 16 of B, so 16 = 5 * 3 + 1 is row permuted(1) of its epoch 5

An epoch is one pass over a source: no row is seen again before all rows of its source were seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from longmlm.batches.sampling import Draw, permuted
from longmlm.errors import DataError
from longmlm.settings.weights import Weight, has_shares, number_of, weights_problem

BLOCK = 1000
# Where the numbers of permutations begin: of blocks, and of the epochs of a source. Without weights, they begin at 0.
BLOCKS, EPOCHS = 1 << 63, 1 << 40


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources whose rows follow each other: the number of rows of each, and how many of a block are drawn from it.

    `fill` is the mean number of tokens in the drawn rows, relative to that of all rows.
    """

    names: tuple[str, ...]
    num_rows: tuple[int, ...]
    drawn: tuple[int, ...]
    fill: float

    def times_seen(self, num_rows: int) -> dict[str, float]:
        """Returns how often the rows of each source are seen when `num_rows` rows are drawn."""
        times = (num_rows * drawn / BLOCK / size for drawn, size in zip(self.drawn, self.num_rows, strict=True))
        return dict(zip(self.names, times, strict=True))

    def batch(self, cursor: int, num_rows: int, seed: int) -> Draw:
        """Returns the `num_rows` rows that follow the first `cursor` rows of the run, with epochs of their sources."""
        blocks, values = np.divmod(np.arange(cursor, cursor + num_rows, dtype=np.int64), BLOCK)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            values[here] = permuted(values[here], BLOCK, seed, BLOCKS + block)
        drawn, sizes = np.array(self.drawn), np.array(self.num_rows)
        first_values, first_rows = np.cumsum(drawn) - drawn, np.cumsum(sizes) - sizes
        sources = np.searchsorted(first_values, values, side="right") - 1
        epochs, index = np.divmod(blocks * drawn[sources] + values - first_values[sources], sizes[sources])
        row_ids = first_rows[sources]
        for source, epoch in set(zip(sources.tolist(), epochs.tolist(), strict=True)):
            here = (sources == source) & (epochs == epoch)
            row_ids[here] += permuted(index[here], self.num_rows[source], seed, (source + 1) * EPOCHS + epoch)
        return Draw(row_ids, epochs)


def mixture_of(weights: Mapping[str, Weight], sources: Mapping[str, tuple[int, int]]) -> Mixture | None:
    """Returns the mixture of sources, given with their numbers of rows and tokens; None without weights.

    Raises DataError for weights that name no source, or that leave one unseen.
    """
    if not weights:
        return None
    if not sources:
        raise DataError("weights need rows that do not mix sources, as earlier versions made them: prepare new ones")
    if problem := weights_problem(weights, sources):
        raise DataError(problem)
    numbers = np.array([number_of(weights.get(name, 1.0)) for name in sources])
    num_rows, num_tokens = np.array(list(sources.values())).T
    exact = numbers * (num_rows / num_tokens if has_shares(weights) else num_rows)
    exact *= BLOCK / exact.sum()
    drawn = np.floor(exact).astype(np.int64)
    drawn[np.argsort(drawn - exact, kind="stable")[: BLOCK - drawn.sum()]] += 1
    if not drawn.all():
        place, name = int(drawn.argmin()), list(sources)[drawn.argmin()]
        raise DataError(
            f"weights leave {name} unseen, with {exact[place]:.2g} of each {BLOCK:,} rows: raise weights.{name} from "
            f"{numbers[place]:g} to {numbers[place] / exact[place]:.2g}"
        )
    fill = (drawn * num_tokens / num_rows).sum() / BLOCK / (num_tokens.sum() / num_rows.sum())
    return Mixture(tuple(sources), tuple(num_rows.tolist()), tuple(drawn.tolist()), float(fill))
