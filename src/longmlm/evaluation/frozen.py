"""Held-out rows under frozen masks, the views of a row that models of different lengths get, and groups of tokens.

A view is the whole row, its start cut to the base model's length, or all of it in chunks of that length. For a row of
10 tokens and a base model of 5 positions: the cut has tokens 0 to 3 and a separator; the chunks have the content
tokens 1 to 3, 4 to 6 and 7 to 8, each between both special tokens.

Selected tokens are grouped by position, by offset in their document, by where else they occur, and by the distance. A
token has *another occurrence* where the same token is visible at another position of the row: it was not replaced there
by the mask token or a random one. Special tokens are never selected. A selected token is in one group:

- chunk: it has another occurrence in its chunk of the base model (`chunks`);
- row: it has one in the row, but none in its chunk, so that only a longer model sees it;
- nowhere: it has none.

Its distance is that to the nearest of all its other occurrences. For example, a base model of 6 positions reads chunks
of 4 tokens; the tokens in brackets are selected, and all of them are replaced by the mask token:

    position   1   2   3   4    5   6   7   8    9  10  11  12
    token      A   B  [A]  C | [D]  B  [E] [C] | [B] F   D  [E]

    A: chunk, distance 2           D: row, distance 6           C: row, distance 4           B: row, distance 3
    both E: nowhere, since each of them hides the other

If the long model reads each document of a row by itself, only the token's own document counts: a token whose other
occurrences are all in other documents is in `nowhere`, even if the base model sees both in one chunk. The groups then
say what the long model can use, for every model that is measured.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from longmlm.artifacts.accuracy import (
    GROUPINGS,
    Accuracy,
    Grouping,
    chunk_content,
    group_ends,
    group_starts,
)
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
    return functools.partial({"cut": cut, "chunks": chunks}[view], base_positions=base_positions, special=special)


def whole(masked: MaskedRow) -> list[View]:
    """Returns the row as it is."""
    return [View(masked, masked.selected)]


def cut(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's first `base_positions - 1` tokens and a separator: as many as the base model reads."""
    if len(masked.row) <= base_positions:
        return whole(masked)
    return [_piece(masked, 1, base_positions - 1, special)]


def chunks(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in chunks of `base_positions - 2` tokens, each between both special tokens."""
    end, length = len(masked.row) - 1, chunk_content(base_positions)
    return [_piece(masked, begin, min(begin + length, end), special) for begin in range(1, end, length)]


def _piece(masked: MaskedRow, begin: int, end: int, special: SpecialTokens) -> View:
    is_inside = (begin <= masked.selected) & (masked.selected < end)
    selected = masked.selected[is_inside]
    row = masked.row.window(begin, end, special)
    return View(MaskedRow(row, selected - begin + 1, masked.labels[is_inside]), selected)


FAR = np.iinfo(np.int64).max // 2


def groups_of(
    masked: MaskedRow, base_positions: int, row_length: int, isolates_documents: bool
) -> Int64[np.ndarray, "groupings selected"]:
    """Returns the number of the group of each selected token, by GROUPINGS and then selected position.

    The groups of all groupings are numbered one after another.
    """
    selected, row, length = masked.selected, masked.row, chunk_content(base_positions)
    before, after = _distances(masked, isolates_documents)
    nearest, in_chunk = np.minimum(before, after), (selected - 1) % length
    is_in_chunk = (before <= in_chunk) | (after < length - in_chunk)
    values: dict[Grouping, Int64[np.ndarray, " selected"]] = {
        "position": selected,
        "offset": row.document_offsets(selected),
        "occurrence": np.where(is_in_chunk, 0, np.where(nearest < FAR, 1, 2)),
        "distance": np.minimum(nearest, row_length),
    }
    pairs = zip(_edges(base_positions, row_length), (values[grouping] for grouping in GROUPINGS), strict=True)
    groups = np.stack([np.searchsorted(edges, own, side="right") - 1 for edges, own in pairs])
    firsts = (0, *group_ends(base_positions, row_length)[:-1])
    return groups + np.array(firsts)[:, None]


@functools.cache
def _edges(base_positions: int, row_length: int) -> list[Int64[np.ndarray, " groups"]]:
    return [np.array(group_starts(grouping, base_positions, row_length)) for grouping in GROUPINGS]


def _distances(masked: MaskedRow, isolates_documents: bool) -> Int64[np.ndarray, "2 selected"]:
    """Returns the distances to the nearest other occurrence before and after each selected token; FAR without one.

    Each token of the row has a key, by which the same tokens are neighbours, at the distance of their positions, and
    different ones, or those of different documents, are further from each other than any two positions.
    """
    row, selected = masked.row, masked.selected
    tokens, positions = row.input_ids.astype(np.int64), np.arange(len(row))
    is_seen = np.ones(len(row), dtype=bool)
    is_seen[selected] = tokens[selected] == masked.labels
    tokens[selected] = masked.labels
    if isolates_documents:
        tokens += (tokens.max() + 1) * np.searchsorted(row.document_starts[1:], positions, side="right")
    keys = 2 * len(row) * tokens + positions
    seen, own = np.concatenate([[-FAR], np.sort(keys[is_seen]), [FAR]]), keys[selected]
    before = own - seen[np.searchsorted(seen, own) - 1]
    after = seen[np.searchsorted(seen, own, side="right")] - own
    distances = np.stack([before, after])
    return np.where(distances < len(row), distances, FAR)


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
