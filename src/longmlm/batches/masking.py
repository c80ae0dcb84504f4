"""A row to what the model sees and what it has to tell: a pure function of seed, visit and row."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from longmlm.data.vocabulary import Maskable
from longmlm.settings.masking import Masking


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row as the model sees it, the selected positions in rising order, and the tokens that stood there."""

    input_ids: Int64[np.ndarray, " tokens"]
    selected: Int64[np.ndarray, " selected"]
    labels: Int64[np.ndarray, " selected"]


def mask_row(
    input_ids: Int64[np.ndarray, " tokens"],
    vocabulary: Maskable,
    masking: Masking,
    seed: int,
    epoch: int,
    row_id: int,
) -> MaskedRow:
    """Returns the row with round(fraction * maskable) positions selected, at least one where any can be.

    The words come from Philox with the key (seed, row) and the visit as the highest word of the counter (Salmon et al.
    2011), so a mask needs no state. A selected token is shown as the mask token, a random one or itself by its share.
    """
    pattern = epoch if masking.mask_patterns is None else epoch % masking.mask_patterns
    philox = np.random.Philox(key=np.array([seed, row_id], np.uint64), counter=np.array([0, 0, 0, pattern], np.uint64))
    maskable = np.flatnonzero(vocabulary.is_maskable[input_ids])
    num_selected = min(len(maskable), max(1, round(masking.selected_fraction * len(maskable))))
    order = np.argsort(philox.random_raw(len(maskable)), kind="stable")
    selected = np.sort(maskable[order[:num_selected]])
    labels = input_ids[selected]

    shown_as = _unit_interval(philox.random_raw(num_selected))
    drawn = vocabulary.drawable[
        (_unit_interval(philox.random_raw(num_selected)) * len(vocabulary.drawable)).astype(np.int64)
    ]
    is_masked = shown_as < masking.masked_share
    is_random = ~is_masked & (shown_as < masking.masked_share + masking.random_share)
    seen = input_ids.astype(np.int64, copy=True)
    seen[selected] = np.where(is_masked, vocabulary.mask, np.where(is_random, drawn, labels))
    return MaskedRow(seen, selected, labels)


def _unit_interval(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
