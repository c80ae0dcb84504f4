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
    if len(masked.input_ids) <= num_positions:
        return whole(masked)
    last = num_positions - 1
    here = masked.selected < last
    seen = np.append(masked.input_ids[:last], special.sep)
    return [View(MaskedRow(seen, masked.selected[here], masked.labels[here]), masked.selected[here])]


def windows(masked: MaskedRow, num_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in windows of `num_positions - 2` tokens, each between both special tokens."""
    views = []
    for begin in range(1, len(masked.input_ids) - 1, num_positions - 2):
        end = min(begin + num_positions - 2, len(masked.input_ids) - 1)
        here = (begin <= masked.selected) & (masked.selected < end)
        seen = np.concatenate([[special.cls], masked.input_ids[begin:end], [special.sep]])
        selected = masked.selected[here]
        views.append(View(MaskedRow(seen, selected - begin + 1, masked.labels[here]), selected))
    return views
