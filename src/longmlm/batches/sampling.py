"""The rows of each global batch: a pure function of seed and cursor, whatever the number of processes.

Each epoch is a permutation of the rows that is computed, not stored. With 5 rows and seed 0, the indices are permuted
as 4-bit numbers by a network that the epoch selects, and a result above 4 is permuted again until it is a row:

    epoch 0: 0 -> 9 -> 7 -> 10 -> 0,  1 -> 13 -> 6 -> 14 -> 4,  2 -> 1,  3 -> 11 -> 3,  4 -> 8 -> 15 -> 2
    so the order of epoch 0 is rows 0 4 1 3 2; that of epoch 1 is rows 2 1 4 0 3

The cursor counts the rows that the whole run has consumed. A global batch of 3 rows at cursor 3 takes rows 3 and 2 of
epoch 0 and row 2 of epoch 1: it straddles two epochs, and no row is dropped.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt64

NUM_ROUNDS = 6


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
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(NUM_ROUNDS)
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


def global_batch(cursor: int, num_rows: int, dataset_rows: int, seed: int) -> Draw:
    """Returns the `num_rows` rows that follow the first `cursor` rows of the run."""
    epochs, index = np.divmod(np.arange(cursor, cursor + num_rows, dtype=np.int64), dataset_rows)
    row_ids = np.empty(num_rows, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        row_ids[in_epoch] = permuted(index[in_epoch], dataset_rows, seed, epoch)
    return Draw(row_ids, epochs)


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
