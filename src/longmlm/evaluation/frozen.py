"""Held-out rows, each under one frozen mask."""

from dataclasses import dataclass

from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Maskable, SpecialTokens
from longmlm.settings.held_out import HeldOut


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """Held-out rows, each with the mask that it keeps for every model."""

    rows: Rows
    config: HeldOut
    vocabulary: Maskable
    special: SpecialTokens
    rows_per_batch: int = 16

    @property
    def row_ids(self) -> list[int]:
        """The rows that are evaluated, evenly spread."""
        count = min(len(self.rows), self.config.max_rows or len(self.rows))
        return [place * len(self.rows) // count for place in range(count)]

    def masked(self, row_id: int) -> MaskedRow:
        """Returns a row under its frozen mask."""
        return mask_row(self.rows[row_id], self.vocabulary, self.config.masking, self.config.mask_seed, 0, row_id)
