"""Views of a masked row: whole, cut to the base model's length, or in windows of it."""

from typing import NamedTuple

import numpy as np

from longmlm.batches.masking import MaskedRow
from longmlm.data.vocabulary import SpecialTokens


class View(NamedTuple):
    """What a model is shown of a row, and the places in the row at which the selected tokens stand."""

    masked: MaskedRow
    places: np.ndarray


def whole(masked: MaskedRow) -> list[View]:
    """Returns the row as it is."""
    return [View(masked, masked.selected)]


def cut(masked: MaskedRow, num_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's first `num_positions - 1` tokens and a separator: as much as the base model reads."""
    if len(masked.row) <= num_positions:
        return whole(masked)
    return [_window(masked, 1, num_positions - 1, special)]


def windows(masked: MaskedRow, num_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in windows of `num_positions - 2` tokens, each between both special tokens."""
    end, length = len(masked.row) - 1, num_positions - 2
    return [_window(masked, begin, min(begin + length, end), special) for begin in range(1, end, length)]


def _window(masked: MaskedRow, begin: int, end: int, special: SpecialTokens) -> View:
    is_inside = (begin <= masked.selected) & (masked.selected < end)
    selected = masked.selected[is_inside]
    row = masked.row.window(begin, end, special)
    return View(MaskedRow(row, selected - begin + 1, masked.labels[is_inside]), selected)
