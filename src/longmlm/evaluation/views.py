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
    if len(masked.input_ids) <= base_positions:
        return whole(masked)
    end = base_positions - 1
    is_kept = masked.selected < end
    input_ids = np.append(masked.input_ids[:end], special.sep)
    return [View(MaskedRow(input_ids, masked.selected[is_kept], masked.labels[is_kept]), masked.selected[is_kept])]


def windows(masked: MaskedRow, base_positions: int, special: SpecialTokens) -> list[View]:
    """Returns the row's content in windows of `base_positions - 2` tokens, each between both special tokens."""
    views = []
    for start in range(1, len(masked.input_ids) - 1, base_positions - 2):
        end = min(start + base_positions - 2, len(masked.input_ids) - 1)
        is_inside = (start <= masked.selected) & (masked.selected < end)
        input_ids = np.concatenate([[special.cls], masked.input_ids[start:end], [special.sep]])
        selected = masked.selected[is_inside]
        views.append(View(MaskedRow(input_ids, selected - start + 1, masked.labels[is_inside]), selected))
    return views
