"""Masking of a row for MLM: which tokens are selected, and what the model sees at their positions."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer

from longmlm.data.row import Maskable, Row
from longmlm.settings.masking import Masking


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row as the model sees it, the selected positions in increasing order, and the original tokens at them."""

    row: Row
    selected: Int64[np.ndarray, " selected"]
    labels: Integer[np.ndarray, " selected"]


def mask_row(row: Row, vocabulary: Maskable, masking: Masking, seed: int, epoch: int, row_id: int) -> MaskedRow:
    """Returns the row with round(fraction * maskable) positions selected, at least one if any is maskable.

    The mask depends on (seed, epoch, row_id) only: random words come from Philox with the key (seed, row_id) and the
    epoch as the highest word of the counter (Salmon et al. 2011). Each selected token is shown as the mask token, as a
    random token or unchanged, with the probabilities of `masking`.
    """
    pattern = epoch if masking.mask_patterns is None else epoch % masking.mask_patterns
    philox = np.random.Philox(key=np.array([seed, row_id], np.uint64), counter=np.array([0, 0, 0, pattern], np.uint64))
    maskable = np.flatnonzero(vocabulary.is_maskable[row.input_ids])
    num_selected = min(len(maskable), max(1, round(masking.selected_fraction * len(maskable))))
    order = np.argsort(philox.random_raw(len(maskable)), kind="stable")
    selected = np.sort(maskable[order[:num_selected]])
    labels = row.input_ids[selected]

    shown_as = _unit_interval(philox.random_raw(num_selected))
    drawn_index = _unit_interval(philox.random_raw(num_selected)) * len(vocabulary.drawable)
    drawn = vocabulary.drawable[drawn_index.astype(np.int64)]
    is_masked = shown_as < masking.masked_share
    is_random = ~is_masked & (shown_as < masking.masked_share + masking.random_share)
    seen = row.input_ids.astype(np.int64, copy=True)
    seen[selected] = np.where(is_masked, vocabulary.mask, np.where(is_random, drawn, labels))
    return MaskedRow(row.with_input_ids(seen), selected, labels)


def _unit_interval(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
