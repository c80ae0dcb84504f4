"""Weights of sources: exact numbers in each block, whole epochs of each source, one cursor, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longmlm.batches import sampling
from longmlm.batches.sampling import BLOCK, Mixture, mixture_of, permuted
from longmlm.errors import DataError
from longmlm.settings.pretrain import Weight

SOURCES = {"novels": (5_000, 500_000), "laws": (700, 35_000), "letters": (123, 12_300)}  # rows and tokens
FIRST = {"novels": 0, "laws": 5_000, "letters": 5_700}
WEIGHTS: dict[str, Weight] = {"laws": 3.0, "letters": 10.0}


def mixed(weights: dict[str, Weight], sources: dict[str, tuple[int, int]] = SOURCES) -> Mixture:
    found = mixture_of(weights, sources)
    assert found is not None
    return found


def source_of(row_ids: np.ndarray) -> np.ndarray:
    return np.searchsorted([*FIRST.values()], row_ids, side="right") - 1


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 10)
    both = mixed({"A": 1.0, "B": 5.0}, {"A": (6, 60), "B": (3, 30)})
    assert both.drawn == (3, 7)
    drawn = both.batch(20, 10, seed=0)
    assert "".join("AB"[row_id >= 6] for row_id in drawn.row_ids.tolist()) == "BABABBABBB"
    for draw, source, size, first, index, epoch in ((3, 0, 6, 0, 1, 1), (5, 1, 3, 6, 2, 5)):
        number = (source + 1) * sampling.EPOCH_KEYS + epoch
        assert drawn.row_ids[draw] == first + permuted(np.array([index]), size, 0, number).item()
        assert drawn.epochs[draw] == epoch


def test_each_block_holds_the_weighted_numbers_rounded_by_the_largest_remainder() -> None:
    found = mixed(WEIGHTS)
    exact = np.array([5_000, 3 * 700, 10 * 123]) * BLOCK / (5_000 + 3 * 700 + 10 * 123)
    assert [*map(int, exact)] == [600, 252, 147] and exact.argmax() != (exact % 1).argmax() == 2
    assert found.drawn == (600, 252, 148)
    sources = source_of(found.batch(0, 30 * BLOCK, seed=3).row_ids).reshape(30, BLOCK)
    assert {tuple(np.bincount(block, minlength=3).tolist()) for block in sources} == {found.drawn}
    assert len({tuple(block.tolist()) for block in sources}) == 30, "each block has an order of its own"


def test_every_row_of_a_source_is_seen_once_before_one_is_seen_again() -> None:
    draw = mixed(WEIGHTS).batch(0, 30 * BLOCK, seed=3)
    sources = source_of(draw.row_ids)
    for number, (name, (size, _)) in enumerate(SOURCES.items()):
        row_ids, epochs = draw.row_ids[sources == number], draw.epochs[sources == number]
        assert epochs.max() >= 3
        orders = [row_ids[epochs == epoch].tolist() for epoch in range(epochs.max())]
        assert all(sorted(order) == list(range(FIRST[name], FIRST[name] + size)) for order in orders)
        assert len({*map(tuple, orders)}) == len(orders)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0.2, 5.0)), min_size=2, max_size=5),
    st.lists(st.integers(1, 900), min_size=1, max_size=5),
    st.integers(0, 2**63 - 1),
)
def test_at_every_cursor_each_row_of_a_source_was_seen_as_often_as_the_others_or_once_less(
    sizes: list[tuple[int, float]], steps: list[int], seed: int
) -> None:
    sources = {f"source-{number}": (rows, 10 * rows) for number, (rows, _) in enumerate(sizes)}
    weights: dict[str, Weight] = {f"source-{number}": weight for number, (_, weight) in enumerate(sizes)}
    assume(min(rows * weight for rows, weight in sizes) > sum(rows * weight for rows, weight in sizes) / BLOCK)
    found, ends = mixed(weights, sources), np.cumsum([0, *steps]).tolist()
    draws = [found.batch(cursor, following - cursor, seed) for cursor, following in pairwise(ends)]
    row_ids, epochs = np.concatenate([(draw.row_ids, draw.epochs) for draw in draws], axis=1)
    borders = np.cumsum([0, *found.num_rows])
    for number, size in enumerate(found.num_rows):
        is_own = np.searchsorted(borders, row_ids, "right") - 1 == number
        own, times = row_ids[is_own].tolist(), epochs[is_own].tolist()
        assert times == [draw // size for draw in range(len(own))], "an epoch begins before the last has ended"
        assert len({*zip(own, times, strict=True)}) == len(own), "a row is drawn twice in an epoch"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5_000), st.lists(st.integers(1, 1_500), min_size=2, max_size=6), st.integers(0, 2**63 - 1))
def test_any_cutting_into_batches_gives_the_same_rows(cursor: int, sizes: list[int], seed: int) -> None:
    found = mixed(WEIGHTS)
    whole = found.batch(cursor, sum(sizes), seed)
    ends = np.cumsum([0, *sizes])[:-1]
    parts = [found.batch(cursor + int(end), size, seed) for end, size in zip(ends, sizes, strict=True)]
    assert np.concatenate([part.row_ids for part in parts]).tolist() == whole.row_ids.tolist()
    assert np.concatenate([part.epochs for part in parts]).tolist() == whole.epochs.tolist()


def test_the_order_depends_on_the_seed_and_differs_from_that_of_another_source() -> None:
    same = {"one": (500, 500), "other": (500, 500)}
    draws = [mixed({"one": 1.0}, same).batch(0, 1_000, seed) for seed in (1, 2)]
    assert draws[0].row_ids.tolist() != draws[1].row_ids.tolist()
    one, other = (draws[0].row_ids[draws[0].row_ids // 500 == number] % 500 for number in (0, 1))
    assert sorted(one) == sorted(other) and one.tolist() != other.tolist()


def test_shares_are_of_tokens_and_the_fill_is_that_of_the_drawn_rows() -> None:
    shares = {"novels": 0.5, "laws": 0.3, "letters": 0.2}
    found = mixed({name: {"share": share} for name, share in shares.items()})
    tokens = np.array(found.drawn) * [100, 50, 100]
    assert tokens / tokens.sum() == pytest.approx([*shares.values()], abs=1 / BLOCK)
    assert found.fill == pytest.approx(tokens.sum() / BLOCK / (547_300 / 5_823))


def test_times_seen_are_those_of_the_rows_drawn() -> None:
    found = mixed(WEIGHTS)
    row_ids = found.batch(0, 10 * BLOCK, seed=0).row_ids
    counts = np.bincount(source_of(row_ids), minlength=3)
    expected = {name: count / size for count, (name, (size, _)) in zip(counts, SOURCES.items(), strict=True)}
    assert found.times_seen(10 * BLOCK) == pytest.approx(expected)


def test_without_weights_there_is_no_mixture() -> None:
    assert mixture_of({}, SOURCES) is None
    assert mixture_of({}, {}) is None


@pytest.mark.parametrize(
    ("weights", "sources", "message"),
    [
        ({"poems": 2.0}, SOURCES, "weights.poems names no source to train on: name one of novels, laws, letters"),
        ({"novels": 2.0}, {"novels": (5, 50)}, "novels is the only one"),
        ({"novels": {"share": 0.5}, "laws": {"share": 0.5}}, SOURCES, "no share for letters"),
        (
            {"letters": 0.001},
            SOURCES,
            r"leave letters unseen, with 0.022 of .*: raise weights.letters from 0.001 to 0.046",
        ),
        ({"novels": 2.0}, {}, "earlier version"),
    ],
)
def test_weights_that_do_not_fit_the_sources_are_refused(
    weights: dict[str, Weight], sources: dict[str, tuple[int, int]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        mixture_of(weights, sources)


def test_a_weight_as_large_as_the_error_asks_for_is_enough() -> None:
    assert 0 not in mixed({"letters": 0.046}).drawn
