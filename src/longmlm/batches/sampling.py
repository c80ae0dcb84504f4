"""The rows of each global batch: a pure function of seed and cursor, whatever the number of processes.

Each epoch is a permutation of the rows that is computed, not stored. With 5 rows and seed 0, the indices are permuted
as 4-bit numbers by a network that the epoch selects, and a result above 4 is permuted again until it is a row:

    epoch 0: 0 -> 7 -> 6 -> 4,  1 -> 11 -> 0,  2 -> 13 -> 14 -> 8 -> 9 -> 1,  3 -> 10 -> 15 -> 2,  4 -> 3
    so the order of epoch 0 is rows 4 0 1 2 3; that of epoch 1 is rows 4 3 0 2 1

The cursor counts the rows that the whole run has consumed. A global batch of 3 rows at cursor 3 takes rows 2 and 3 of
epoch 0 and row 4 of epoch 1: it straddles two epochs, and no row is dropped.

With weights, rows are drawn in blocks of 1,000, each with the same number of rows of a given source. With blocks of
10, a source A of 6 rows with weight 1 and a source B of 3 rows with weight 5, these numbers are in the ratio 6 * 1 to
3 * 5: 2.86 and 7.14 of 10, rounded by the largest remainder to 3 and 7. A permutation of 0 to 9 orders each block:
values below 3 stand for A. With seed 0, the third block is B A B A B B A B B B, in which

    the second A is draw 2 * 3 + 1 = 7 of A, and since 7 = 1 * 6 + 1, it is row permuted(1) of its epoch 1
    the fourth B is draw 2 * 7 + 3 = 17 of B, and since 17 = 5 * 3 + 2, it is row permuted(2) of its epoch 5

A source's draws are counted in the order of the run, so all its rows are seen before one is seen again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt64

from longmlm.data.row import Stream, philox_at
from longmlm.errors import DataError, TrainingError, counted
from longmlm.settings.pretrain import Weight, has_shares, number_of, weights_problem

NUM_ROUNDS = 6
BLOCK = 1000
SEARCHED_ROWS = 100_000  # rows that are drawn at once to find one, at most
# Keys of permutations: BLOCK_KEYS + b of block b, (s + 1) * EPOCH_KEYS + e of epoch e of source s; e without weights.
BLOCK_KEYS, EPOCH_KEYS = 1 << 63, 1 << 40


@dataclass(frozen=True, slots=True)
class Draw:
    """Rows to train on, each with its epoch: how many times the row was drawn before."""

    row_ids: Int64[np.ndarray, " rows"]
    epochs: Int64[np.ndarray, " rows"]


def permuted(index: Int64[np.ndarray, " rows"], size: int, seed: int, epoch: int) -> Int64[np.ndarray, " rows"]:
    """Returns the images of the indices under the permutation of 0..size-1 that (seed, epoch) selects.

    A balanced Feistel network on the next even number of bits, with splitmix64 as its round function, cycle-walked
    until the result is below `size` (Black and Rogaway 2002): constant time per element and no index file.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = philox_at(Stream.ORDER, (seed, epoch)).random_raw(NUM_ROUNDS)
    walked = _feistel(np.asarray(index, dtype=np.uint64), half, keys)
    while (outside := walked >= size).any():
        walked[outside] = _feistel(walked[outside], half, keys)
    return walked.astype(np.int64)


def _feistel(values: UInt64[np.ndarray, " n"], half: int, keys: UInt64[np.ndarray, " k"]) -> UInt64[np.ndarray, " n"]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_splitmix64(right + key) & mask)
    return (left << bits) | right


def _splitmix64(words: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def rows_per_step(batch_tokens: int, row_length: int, mean_fill: float, num_processes: int) -> int:
    """Returns how many rows hold about `batch_tokens`; raises TrainingError if that is less than one per process."""
    num_rows = round(batch_tokens / (row_length * mean_fill))
    if num_rows < num_processes:
        raise TrainingError(
            f"batch_tokens = {batch_tokens} gives {counted(num_rows, 'row')} of {row_length} for "
            f"{counted(num_processes, 'process')}: set it to at least {num_processes * row_length}"
        )
    return num_rows


def global_batch(cursor: int, num_rows: int, dataset_rows: int, seed: int) -> Draw:
    """Returns the `num_rows` rows that follow the first `cursor` rows of the run."""
    epochs, index = np.divmod(np.arange(cursor, cursor + num_rows, dtype=np.int64), dataset_rows)
    row_ids = np.empty(num_rows, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        row_ids[in_epoch] = permuted(index[in_epoch], dataset_rows, seed, epoch)
    return Draw(row_ids, epochs)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources whose rows follow each other: the number of rows of each, and how many rows of a block it gets.

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
        blocks, positions = np.divmod(np.arange(cursor, cursor + num_rows, dtype=np.int64), BLOCK)
        sources, draws = np.empty((2, num_rows), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            in_block = blocks == block
            sources[in_block], draws[in_block] = (column[positions[in_block]] for column in self._block(block, seed))
        sizes = np.array(self.num_rows)
        epochs, index = np.divmod(draws, sizes[sources])
        row_ids = (np.cumsum(sizes) - sizes)[sources]
        for source, epoch in set(zip(sources.tolist(), epochs.tolist(), strict=True)):
            same = (sources == source) & (epochs == epoch)
            row_ids[same] += permuted(index[same], self.num_rows[source], seed, (source + 1) * EPOCH_KEYS + epoch)
        return Draw(row_ids, epochs)

    def _block(self, block: int, seed: int) -> tuple[Int64[np.ndarray, " block"], Int64[np.ndarray, " block"]]:
        """Returns the source of each row of a block, and how many rows of that source are drawn before it."""
        drawn = np.array(self.drawn)
        order = permuted(np.arange(BLOCK), BLOCK, seed, BLOCK_KEYS + block)
        sources = np.searchsorted(np.cumsum(drawn), order, "right")
        draws = np.empty(BLOCK, dtype=np.int64)
        draws[np.argsort(sources, kind="stable")] = np.arange(BLOCK)  # by source, then by position in the block
        return sources, draws + (block * drawn - (np.cumsum(drawn) - drawn))[sources]


def rows_after(cursor: int, num_rows: int, dataset_rows: int, mixture: Mixture | None, seed: int) -> Draw:
    """Returns the `num_rows` rows that follow the first `cursor` rows of a run with this mixture, or without any."""
    return mixture.batch(cursor, num_rows, seed) if mixture else global_batch(cursor, num_rows, dataset_rows, seed)


def next_epoch(row_id: int, cursor: int, dataset_rows: int, mixture: Mixture | None, seed: int) -> int:
    """Returns the epoch of a row when it is drawn for the first time after the first `cursor` rows of a run."""
    num_rows = min(SEARCHED_ROWS, dataset_rows)
    while True:
        draw = rows_after(cursor, num_rows, dataset_rows, mixture, seed)
        if len(epochs := draw.epochs[draw.row_ids == row_id]):
            return int(epochs[0])
        cursor += num_rows


def mixture_of(weights: Mapping[str, Weight], sources: Mapping[str, tuple[int, int]]) -> Mixture | None:
    """Returns the mixture of sources, given with their numbers of rows and tokens; None without weights.

    Raises DataError for weights that name no source, or that leave one unseen.
    """
    if not weights:
        return None
    if not sources:
        raise DataError(
            "an earlier version made these rows, which mix sources: prepare new ones in another folder to use weights"
        )
    if problem := weights_problem(weights, sources):
        raise DataError(problem)
    numbers = np.array([number_of(weights.get(name, 1.0)) for name in sources])
    num_rows, num_tokens = np.array(list(sources.values())).T
    exact = numbers * (num_rows / num_tokens if has_shares(weights) else num_rows)
    exact *= BLOCK / exact.sum()
    drawn = np.floor(exact).astype(np.int64)
    drawn[np.argsort(drawn - exact, kind="stable")[: BLOCK - drawn.sum()]] += 1
    if not drawn.all():
        number, name = int(drawn.argmin()), list(sources)[drawn.argmin()]
        raise DataError(
            f"weights leave {name} unseen, with {exact[number]:.2g} of every {BLOCK:,} rows: raise weights.{name} from "
            f"{numbers[number]:g} to {numbers[number] / exact[number]:.2g}"
        )
    fill = (drawn * num_tokens / num_rows).sum() / BLOCK / (num_tokens.sum() / num_rows.sum())
    return Mixture(tuple(sources), tuple(num_rows.tolist()), tuple(drawn.tolist()), float(fill))


def share_of_rank(draw: Draw, rank: int, num_processes: int) -> Draw:
    """Returns a rank's share of a global batch; where the rows do not divide evenly, some ranks have one row more."""
    num_rows = len(draw.row_ids)
    share = slice(num_rows * rank // num_processes, num_rows * (rank + 1) // num_processes)
    return Draw(draw.row_ids[share], draw.epochs[share])


def largest_share(num_rows: int, num_processes: int) -> int:
    """Returns how many rows of a global batch the rank with most rows has."""
    return -(-num_rows // num_processes)


def micro_batches(
    lengths: Int64[np.ndarray, " rows"], num_rows: int, num_processes: int, rows_per_micro_batch: int
) -> list[Int64[np.ndarray, " n"]]:
    """Returns which rows of a rank's share form each micro-batch: rows of similar length, the longest first.

    `lengths` are those of the share, `num_rows` is the size of the global batch, at least one row for each rank. Every
    rank gets the same number of micro-batches, none empty, of about `rows_per_micro_batch` rows.
    """
    most_rows = largest_share(num_rows, num_processes)
    count = min(-(-most_rows // rows_per_micro_batch), num_rows // num_processes)
    return np.array_split(np.argsort(-lengths, kind="stable"), count)
