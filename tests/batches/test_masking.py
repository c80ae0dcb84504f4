"""Masks: exact counts and shares, only text selected and drawn, no state."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.data.row import Maskable, Row
from longmlm.settings.masking import Masking

SIZE, MASK = 1_000, 4
SPECIAL = (0, 1, 2, 3, MASK, 700, 999)
IS_MASKABLE = np.isin(np.arange(SIZE), SPECIAL, invert=True)
VOCABULARY = Maskable(IS_MASKABLE, np.flatnonzero(IS_MASKABLE), MASK)
MASKING = Masking()


def row_of(num_tokens: int, row_id: int) -> Row:
    """Returns a row between special tokens, with a separator and an unknown token inside."""
    content = np.random.default_rng(row_id).choice(VOCABULARY.drawable, num_tokens)
    half = num_tokens // 2
    ids = np.concatenate([[0], content[:half], [2, 3], content[half:], [2, 1, 1]]).astype(np.int64)
    return Row(ids, np.array([1, half + 2]), np.array([0, 1]))


def masked(row_id: int, epoch: int = 0, seed: int = 7, masking: Masking = MASKING, num_tokens: int = 120) -> MaskedRow:
    return mask_row(row_of(num_tokens, row_id), VOCABULARY, masking, seed, epoch, row_id)


def same(left: MaskedRow, right: MaskedRow) -> bool:
    columns = [(one.row.input_ids, one.selected, one.labels) for one in (left, right)]
    return all(np.array_equal(*pair) for pair in zip(*columns, strict=True))


@settings(deadline=None, max_examples=100)
@given(
    num_tokens=st.integers(0, 300),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
    row_id=st.integers(0, 2**40),
)
def test_the_count_is_the_rounded_share_of_maskable_tokens_and_at_least_one(
    num_tokens: int, fraction: float, seed: int, epoch: int, row_id: int
) -> None:
    row = row_of(num_tokens, row_id)
    kept = row.input_ids.copy()
    result = mask_row(row, VOCABULARY, Masking(selected_fraction=fraction), seed, epoch, row_id)
    assert len(result.selected) == (max(1, round(fraction * num_tokens)) if num_tokens else 0)
    assert (np.diff(result.selected) > 0).all()
    assert IS_MASKABLE[result.labels].all(), "no special or unknown token is selected"
    assert np.array_equal(row.input_ids, kept), "the argument stays as it is"
    assert np.array_equal(result.labels, row.input_ids[result.selected])
    others = np.setdiff1d(np.arange(len(row)), result.selected)
    assert np.array_equal(result.row.input_ids[others], row.input_ids[others])


@pytest.mark.parametrize(("masked_share", "random_share"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.3)])
def test_the_shares_of_masked_random_and_kept_tokens_are_within_four_deviations(
    masked_share: float, random_share: float
) -> None:
    masking = Masking(masked_share=masked_share, random_share=random_share)
    results = [masked(row_id, masking=masking) for row_id in range(600)]
    labels = np.concatenate([result.labels for result in results])
    shown = np.concatenate([result.row.input_ids[result.selected] for result in results])
    assert len(labels) == 600 * 18
    replaced = random_share * (1 - 1 / len(VOCABULARY.drawable))
    found = {
        masked_share: np.mean(shown == MASK),
        replaced: np.mean((shown != MASK) & (shown != labels)),
        1 - masked_share - replaced: np.mean(shown == labels),
    }
    for share, measured in found.items():
        assert abs(measured - share) <= 4 * np.sqrt(max(0, share * (1 - share)) / len(labels))


def test_every_position_is_selected_equally_often_and_every_token_can_be_drawn() -> None:
    masking = Masking(masked_share=0.0, random_share=1.0)
    results = [masked(row_id, masking=masking) for row_id in range(1_500)]
    times = np.bincount(np.concatenate([result.selected for result in results]), minlength=125)
    maskable = np.flatnonzero(IS_MASKABLE[row_of(120, 0).input_ids])
    expected, deviation = 1_500 * 0.15, np.sqrt(1_500 * 0.15 * 0.85)
    assert len(maskable) == 120
    assert np.abs(times[maskable] - expected).max() < 5 * deviation
    shown = np.concatenate([result.row.input_ids[result.selected] for result in results])
    assert np.array_equal(np.unique(shown), VOCABULARY.drawable)


def test_a_mask_depends_on_seed_epoch_and_row_only() -> None:
    first = masked(3, epoch=5, seed=9)
    np.random.seed(1)
    masked(8)
    assert same(first, masked(3, epoch=5, seed=9))
    row = row_of(120, 3)
    keys = [(9, 5, 3), (10, 5, 3), (9, 6, 3), (9, 5, 4), (5, 9, 3), (3, 5, 9)]
    chosen = [mask_row(row, VOCABULARY, MASKING, seed, epoch, row_id).selected for seed, epoch, row_id in keys]
    assert not any(np.array_equal(one, other) for one, other in combinations(chosen, 2))


@pytest.mark.parametrize("other", [(0, 1), (1, 0), (1, 1)])
def test_the_masks_of_neighbouring_epochs_and_rows_are_not_shifted_copies(other: tuple[int, int]) -> None:
    shares = np.zeros(41)
    for number in range(300):
        row_id, epoch = 3 * number, number
        one, two = masked(row_id, epoch), masked(row_id + other[0], epoch + other[1])
        distances = (one.selected[:, None] - two.selected[None, :]).ravel() + 20
        shares += np.bincount(distances[(distances >= 0) & (distances <= 40)], minlength=41)
    expected = 300 * 120 * 0.15**2
    assert shares.sum() > 20 * expected
    assert shares.max() < 1.35 * expected


@pytest.mark.parametrize(
    ("mask_patterns", "num_masks"), [(None, 30), (10, 10), (1, 1)], ids=["dynamic", "ten", "static"]
)
def test_masks_repeat_after_as_many_epochs_as_there_are_patterns(mask_patterns: int | None, num_masks: int) -> None:
    masks = [masked(2, epoch, masking=replace(MASKING, mask_patterns=mask_patterns)) for epoch in range(30)]
    assert all(same(masks[epoch], masks[epoch % num_masks]) for epoch in range(30))
    assert not any(same(one, other) for one, other in combinations(masks[:num_masks], 2))
    assert same(masks[0], masked(2, 0))
