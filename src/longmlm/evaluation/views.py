"""Views of a masked row: the whole row, its start cut to the base model's length, or windows of that length."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from longmlm.batches.masking import MaskedRow
from longmlm.data.vocabulary import SpecialTokens


class View(NamedTuple):
    """The input of a model, and the positions that its selected tokens have in the original row."""

    masked: MaskedRow
    positions: Int64[np.ndarray, " selected"]


Viewer = Callable[[MaskedRow], list[View]]


def whole(masked: MaskedRow) -> list[View]:
    """Returns the row as it is."""
    return [View(masked, masked.selected)]


def cut(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's first `base_positions - 1` tokens and a separator: as many as the base model reads."""
    if len(masked.row) <= base_positions:
        return whole(masked)
    return [_window(masked, 1, base_positions - 1, special)]


def windows(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in windows of `base_positions - 2` tokens, each between both special tokens."""
    end, length = len(masked.row) - 1, base_positions - 2
    return [_window(masked, begin, min(begin + length, end), special) for begin in range(1, end, length)]


def _window(masked: MaskedRow, begin: int, end: int, special: SpecialTokens) -> View:
    is_inside = (begin <= masked.selected) & (masked.selected < end)
    selected = masked.selected[is_inside]
    row = masked.row.window(begin, end, special)
    return View(MaskedRow(row, selected - begin + 1, masked.labels[is_inside]), selected)
