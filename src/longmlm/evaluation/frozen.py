"""Held-out rows, each with one frozen mask, so that every model predicts the same tokens."""

from dataclasses import dataclass

from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Maskable, SpecialTokens
from longmlm.settings.held_out import HeldOut


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """Held-out rows, each with the mask that it keeps for every model."""

    rows: Rows
    settings: HeldOut
    vocabulary: Maskable
    special: SpecialTokens
    rows_per_batch: int = 16

    @property
    def row_ids(self) -> list[int]:
        """The rows to evaluate, evenly spread over the held-out split."""
        num_rows = min(len(self.rows), self.settings.max_rows or len(self.rows))
        return [index * len(self.rows) // num_rows for index in range(num_rows)]

    def masked(self, row_id: int) -> MaskedRow:
        """Returns a row under its frozen mask."""
        return mask_row(self.rows[row_id], self.vocabulary, self.settings.masking, self.settings.mask_seed, 0, row_id)
