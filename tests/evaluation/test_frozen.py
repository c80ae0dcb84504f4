"""Views of a row: its start, chunks of it, or the whole row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row, SpecialTokens
from longmlm.data.vocabulary import Vocabulary
from longmlm.evaluation.frozen import FrozenRows, chunks, cut, whole
from longmlm.settings.masking import HeldOut

SPECIAL = SpecialTokens(cls=0, sep=2, mask=4, pad=1, unk=3, all=(0, 1, 2, 3, 4))


def masked_row(num_tokens: int, share: float, seed: int) -> MaskedRow:
    """Returns a row between its special tokens of which a share of the content is selected."""
    generator = np.random.default_rng(seed)
    content = generator.integers(10, 300, num_tokens)
    tokens = np.concatenate([[SPECIAL.cls], content, [SPECIAL.sep]])
    num_selected = max(1, round(share * num_tokens))
    selected = np.sort(generator.choice(np.arange(1, num_tokens + 1), num_selected, replace=False))
    labels = tokens[selected].copy()
    tokens[selected] = SPECIAL.mask
    middle = max(1, num_tokens // 2)
    return MaskedRow(Row(tokens, np.array([1, middle]), np.array([3, 5])), selected, labels)


ROWS = {
    "num_tokens": st.integers(1, 90),
    "share": st.floats(0.05, 1),
    "num_positions": st.integers(3, 40),
    "seed": st.integers(0, 999),
}


@settings(deadline=None, max_examples=100)
@given(**ROWS)
def test_cut_keeps_the_start_with_its_selected_positions_and_ends_with_the_separator(
    num_tokens: int, share: float, num_positions: int, seed: int
) -> None:
    row = masked_row(num_tokens, share, seed)
    (view,) = cut(row, num_positions, SPECIAL)
    length = min(num_tokens + 2, num_positions)
    assert len(view.masked.row.input_ids) == length
    assert view.masked.row.input_ids[:-1].tolist() == row.row.input_ids[: length - 1].tolist()
    assert view.masked.row.input_ids[-1] == SPECIAL.sep
    is_kept = row.selected < length - 1
    assert view.positions.tolist() == view.masked.selected.tolist() == row.selected[is_kept].tolist()
    assert view.masked.labels.tolist() == row.labels[is_kept].tolist()


@settings(deadline=None, max_examples=100)
@given(**ROWS)
def test_windows_show_every_token_and_every_selected_position_once_with_its_label(
    num_tokens: int, share: float, num_positions: int, seed: int
) -> None:
    row = masked_row(num_tokens, share, seed)
    views = chunks(row, num_positions, SPECIAL)
    shown = [view.masked.row.input_ids for view in views]
    assert all(len(tokens) == num_positions for tokens in shown[:-1]) and len(shown[-1]) <= num_positions
    assert all(tokens[0] == SPECIAL.cls and tokens[-1] == SPECIAL.sep for tokens in shown)
    assert np.concatenate([tokens[1:-1] for tokens in shown]).tolist() == row.row.input_ids[1:-1].tolist()
    assert np.concatenate([view.positions for view in views]).tolist() == row.selected.tolist()
    assert np.concatenate([view.masked.labels for view in views]).tolist() == row.labels.tolist()
    for view in views:
        assert view.masked.row.input_ids[view.masked.selected].tolist() == row.row.input_ids[view.positions].tolist()
        assert (view.masked.row.input_ids[view.masked.selected] == SPECIAL.mask).all()


def test_documents_follow_a_window() -> None:
    row = Row(np.arange(20), np.array([1, 8, 14]), np.array([4, 5, 6]))
    chunks = {(1, 19): ([1, 8, 14], [4, 5, 6]), (3, 9): ([1, 6], [4, 5]), (8, 14): ([1], [5]), (9, 12): ([1], [5])}
    for (begin, end), (starts, sources) in chunks.items():
        window = row.window(begin, end, SPECIAL)
        assert window.input_ids.tolist() == [SPECIAL.cls, *range(begin, end), SPECIAL.sep]
        assert (window.document_starts.tolist(), window.document_sources.tolist()) == (starts, sources)


def test_whole_shows_the_row_as_it_is() -> None:
    row = masked_row(30, 0.3, 0)
    (view,) = whole(row)
    assert view.masked is row
    assert view.positions is row.selected


def test_row_that_the_base_model_reads_whole_is_not_cut() -> None:
    row = masked_row(14, 0.9, 0)
    assert cut(row, 16, SPECIAL)[0].masked is row
    shorter = cut(row, 15, SPECIAL)[0]
    assert len(shorter.masked.row.input_ids) == 15
    assert len(shorter.positions) < len(row.selected)


def test_masks_are_the_same_at_every_call_and_for_every_model(frozen: FrozenRows, vocabulary: Vocabulary) -> None:
    again = replace(frozen, rows_per_batch=3)
    other = replace(frozen, settings=HeldOut(mask_seed=1))
    differing = 0
    for row_id in frozen.row_ids:
        one, two, three = (rows.masked(row_id) for rows in (frozen, again, other))
        assert one.row.input_ids.tolist() == two.row.input_ids.tolist() == frozen.masked(row_id).row.input_ids.tolist()
        assert one.selected.tolist() == two.selected.tolist()
        assert one.labels.tolist() == frozen.rows[row_id].input_ids[one.selected].tolist()
        assert len(one.selected) >= 1
        differing += one.selected.tolist() != three.selected.tolist()
    assert differing > len(frozen.row_ids) / 2


def test_rows_that_are_held_out_and_those_that_are_measured_are_both_counted(frozen: FrozenRows) -> None:
    all_rows = f"{len(frozen.rows):,} rows"
    assert len(frozen.rows) > 7
    for max_rows, expected in ((7, f"{all_rows}, of which 7 are measured"), (10_000, all_rows), (None, all_rows)):
        assert replace(frozen, settings=HeldOut(max_rows=max_rows)).description == expected


@pytest.mark.parametrize("max_rows", [1, 7, 50, 10_000, None])
def test_rows_that_are_evaluated_are_spread_evenly(frozen: FrozenRows, max_rows: int | None) -> None:
    num_rows = len(frozen.rows)
    row_ids = replace(frozen, settings=HeldOut(max_rows=max_rows)).row_ids
    assert len(row_ids) == min(num_rows, max_rows or num_rows)
    assert row_ids == sorted(set(row_ids))
    assert row_ids[0] >= 0
    assert row_ids[-1] < num_rows
    gaps = np.diff([*row_ids, num_rows])
    assert gaps.max() - gaps.min() <= 1
