"""The order of rows: a permutation for every epoch, one cursor, the same global batches for any number of processes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.batches.sampling import Draw, global_batch, micro_batches, permuted, share_of_rank

SIZES = [*range(1, 70), 127, 128, 129, 255, 256, 257, 1000, 1023, 1024, 1025, 4097, 10_007]


def order_of(size: int, seed: int, epoch: int) -> list[int]:
    return permuted(np.arange(size), size, seed, epoch).tolist()


@pytest.mark.parametrize("seed", [0, 2**63])
def test_permuted_is_a_permutation_for_every_size(seed: int) -> None:
    for size in SIZES:
        for epoch in (0, 1, 7):
            assert sorted(order_of(size, seed, epoch)) == list(range(size))


def test_the_worked_example() -> None:
    assert [order_of(5, 0, epoch) for epoch in (0, 1)] == [[4, 0, 1, 2, 3], [4, 3, 0, 2, 1]]
    draw = global_batch(cursor=3, num_rows=3, dataset_rows=5, seed=0)
    assert (draw.row_ids.tolist(), draw.epochs.tolist()) == ([2, 3, 4], [0, 0, 1])


def test_the_order_differs_by_epoch_and_by_seed() -> None:
    orders = {tuple(order_of(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_an_order_does_not_follow_the_rows_on_disk() -> None:
    for epoch in range(5):
        order = np.array(order_of(5_000, 3, epoch))
        assert np.mean(np.abs(np.diff(order)) == 1) < 0.01
        assert abs(np.corrcoef(np.arange(5_000), order)[0, 1]) < 0.06


def test_every_position_of_a_small_epoch_meets_every_row_equally_often() -> None:
    times = np.zeros((7, 7))
    for epoch in range(980):
        times[np.arange(7), order_of(7, 11, epoch)] += 1
    assert np.abs(times - 140).max() < 4.5 * np.sqrt(980 / 7 * 6 / 7)


def test_a_row_is_found_without_asking_for_the_others() -> None:
    whole = order_of(999, 5, 2)
    assert [permuted(np.array([index]), 999, 5, 2).item() for index in range(0, 999, 37)] == whole[::37]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 50), st.integers(0, 1000))
def test_every_epoch_shows_every_row_once_and_counts_epochs(size: int, rows_per_step: int, seed: int) -> None:
    draws = [global_batch(cursor, rows_per_step, size, seed) for cursor in range(0, 4 * size, rows_per_step)]
    row_ids = np.concatenate([draw.row_ids for draw in draws])
    epochs = np.concatenate([draw.epochs for draw in draws])
    for epoch in range(4):
        here = slice(epoch * size, (epoch + 1) * size)
        assert sorted(row_ids[here].tolist()) == list(range(size))
        assert epochs[here].tolist() == [epoch] * size


def test_a_global_batch_straddles_epochs_and_drops_no_row() -> None:
    draw = global_batch(cursor=95, num_rows=250, dataset_rows=100, seed=1)
    assert draw.epochs.tolist() == [0] * 5 + [1] * 100 + [2] * 100 + [3] * 45
    expected = [*order_of(100, 1, 0)[95:], *order_of(100, 1, 1), *order_of(100, 1, 2), *order_of(100, 1, 3)[:45]]
    assert draw.row_ids.tolist() == expected


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 200), st.lists(st.integers(1, 70), min_size=2, max_size=6), st.integers(0, 500))
def test_a_cursor_in_the_middle_goes_on_as_counting_from_the_beginning(size: int, steps: list[int], start: int) -> None:
    whole = global_batch(start, sum(steps), size, seed=3)
    cursors = [start + sum(steps[:count]) for count in range(len(steps) + 1)]
    resumed = [global_batch(cursor, following - cursor, size, seed=3) for cursor, following in pairwise(cursors)]
    assert np.concatenate([draw.row_ids for draw in resumed]).tolist() == whole.row_ids.tolist()
    assert np.concatenate([draw.epochs for draw in resumed]).tolist() == whole.epochs.tolist()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), st.integers(0, 90), st.integers(1, 20), st.integers(0, 2**32))
def test_micro_batches_divide_the_shares_of_all_ranks(
    num_processes: int, more_rows: int, rows_per_micro_batch: int, seed: int
) -> None:
    num_rows = num_processes + more_rows
    draw = Draw(np.arange(num_rows) * 3, np.arange(num_rows) % 2)
    shares = [share_of_rank(draw, rank, num_processes) for rank in range(num_processes)]
    for name in ("row_ids", "epochs"):
        assert np.concatenate([getattr(one, name) for one in shares]).tolist() == getattr(draw, name).tolist()
    lengths = np.random.default_rng(seed).integers(1, 9, num_rows)
    parts = [
        micro_batches(lengths[: len(share.row_ids)], num_rows, num_processes, rows_per_micro_batch) for share in shares
    ]
    assert len({len(part) for part in parts}) == 1
    sizes = [len(one) for part in parts for one in part]
    assert 0 < max(sizes) <= rows_per_micro_batch + 1 and max(sizes) - min(sizes) <= 1
    for share, part in zip(shares, parts, strict=True):
        order = np.concatenate(part)
        assert sorted(order) == list(range(len(share.row_ids)))
        assert (np.diff(lengths[order]) <= 0).all()


def test_an_even_global_batch_gives_micro_batches_of_exactly_the_size_asked() -> None:
    for num_processes in (1, 2, 3, 4, 6):
        share = np.full(48 // num_processes, 7)
        assert [len(part) for part in micro_batches(share, 48, num_processes, 4)] == [4] * (12 // num_processes)
