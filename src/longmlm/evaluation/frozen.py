"""Held-out rows under frozen masks, and the views of a row that models of different lengths are given.

A view is the whole row, its start cut to the base model's length, or all of it in chunks of that length. For a row of
10 tokens and a base model of 5 positions: the cut has tokens 0 to 3 and a separator; the chunks have the content
tokens 1 to 3, 4 to 6 and 7 to 8, each between both special tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from longmlm.artifacts.accuracy import Accuracy, chunk_content
from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.batches.pairs import Pairing
from longmlm.data.row import LooseRows, Maskable, Row, SpecialTokens
from longmlm.data.rows import Rows
from longmlm.errors import ModelError, counted
from longmlm.settings.masking import HeldOut, PairKind


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """Held-out rows, each with one mask that is the same for every model; and with one pair, if pairs are measured.

    `isolates_documents` says whether the long model reads each document of a row by itself, on which the groups of the
    selected tokens depend.
    """

    rows: Rows | LooseRows
    settings: HeldOut
    vocabulary: Maskable
    special: SpecialTokens
    rows_per_batch: int = 16
    pairs: PairKind | None = None
    isolates_documents: bool = False

    @property
    def row_ids(self) -> list[int]:
        """The rows to evaluate, evenly spread over the held-out split."""
        num_rows = min(len(self.rows), self.settings.max_rows or len(self.rows))
        return [index * len(self.rows) // num_rows for index in range(num_rows)]

    @property
    def description(self) -> str:
        """How many rows are held out and, if not all are measured, how many of them are."""
        held_out, num_rows = counted(len(self.rows), "row"), len(self.row_ids)
        return held_out if num_rows == len(self.rows) else f"{held_out}, of which {num_rows:,} are measured"

    @property
    def rows_by_source(self) -> dict[str, slice]:
        """Where in `row_ids` the rows of each source are; empty if all rows are from one source."""
        sizes = self.rows.rows_per_source
        ends = np.searchsorted(self.row_ids, np.cumsum([0, *sizes.values()])).tolist()
        return {name: slice(*span) for name, span in zip(sizes, pairwise(ends), strict=True) if span[0] < span[1]}

    def masked(self, row_id: int) -> MaskedRow:
        """Returns a row under its frozen mask."""
        return self._masked(self.rows[row_id], row_id)

    def masked_pair(self, row_id: int) -> MaskedRow:
        """Returns the frozen pair that is made from a row, under its frozen mask."""
        assert self.pairs is not None
        pairing = Pairing(self.pairs, self.special)
        return self._masked(pairing.pair(self.rows, row_id, self.settings.mask_seed, 0), row_id)

    def _masked(self, row: Row, row_id: int) -> MaskedRow:
        return mask_row(row, self.vocabulary, self.settings.masking, self.settings.mask_seed, 0, row_id)


class View(NamedTuple):
    """The input of a model, and the positions that its selected tokens have in the original row."""

    masked: MaskedRow
    positions: Int64[np.ndarray, " selected"]


Viewer = Callable[[MaskedRow], list[View]]
RowView = Literal["whole", "cut", "chunks"]


def viewer_of(view: RowView, base_positions: int, special: SpecialTokens) -> Viewer:
    """Returns the function that makes this view of a row for a base model of `base_positions`."""
    if view == "whole":
        return whole
    return partial({"cut": cut, "chunks": chunks}[view], base_positions=base_positions, special=special)


def whole(masked: MaskedRow) -> list[View]:
    """Returns the row as it is."""
    return [View(masked, masked.selected)]


def cut(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's first `base_positions - 1` tokens and a separator: as many as the base model reads."""
    if len(masked.row) <= base_positions:
        return whole(masked)
    return [_window(masked, 1, base_positions - 1, special)]


def chunks(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in chunks of `base_positions - 2` tokens, each between both special tokens."""
    end, length = len(masked.row) - 1, chunk_content(base_positions)
    return [_window(masked, begin, min(begin + length, end), special) for begin in range(1, end, length)]


def _window(masked: MaskedRow, begin: int, end: int, special: SpecialTokens) -> View:
    is_inside = (begin <= masked.selected) & (masked.selected < end)
    selected = masked.selected[is_inside]
    row = masked.row.window(begin, end, special)
    return View(MaskedRow(row, selected - begin + 1, masked.labels[is_inside]), selected)


MIN_SELECTED = 200  # of fewer tokens, the most frequent one may have a large share by chance


def check_predicts(base: Accuracy, frozen: FrozenRows, view: Viewer, name: str) -> None:
    """Raises ModelError if the base model, with this accuracy in this view, is no better than a constant guess.

    Does nothing if fewer than 200 tokens are selected.
    """
    commonest = commonest_share(frozen, view)
    if base.accuracy is not None and base.num_selected >= MIN_SELECTED and base.accuracy <= commonest:
        raise ModelError(
            f"the base model {name} predicts nothing: of {counted(base.num_selected, 'masked token')} it predicts "
            f"{base.accuracy:.2f} %, and always predicting the most frequent token would be right for "
            f"{commonest:.2f} %: check its MLM head and tokenizer, or train it at its own length first, with "
            "extension = false"
        )


def commonest_share(frozen: FrozenRows, view: Viewer) -> float:
    """Returns the share of the most frequent token among the selected ones in percent; 0 if none is selected."""
    shown = [one.masked.labels for row_id in frozen.row_ids for one in view(frozen.masked(row_id))]
    labels = np.concatenate([np.zeros(0, np.int64), *shown])
    return 100 * int(np.bincount(labels).max()) / len(labels) if len(labels) else 0.0
