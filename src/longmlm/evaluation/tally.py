"""Masked-token accuracy from sums over held-out rows: of whole rows, per block, per bin of positions, and by offset.

Everything follows from three sums per row and bin: selected tokens, correct predictions, losses. For example, blocks of
4 positions with one bin each, two rows of 8 tokens: row 0 has selected positions 1 and 6, row 1 has 2, 3 and 5, and the
model is right at position 1 of row 0 and position 3 of row 1.

    selected  [[1, 1],    correct  [[1, 0],    a line per row, a column per block
               [2, 1]]              [1, 0]]

    whole rows: 2 of 5 = 40 % (not 41.7 %, the mean of the rows' 1/2 and 1/3); blocks: 2 of 3 = 66.7 %, 0 of 2 = 0 %
    standard error of the 40 %: per row, correct - 0.4 * selected = 0.2 and -0.2, so
    sqrt((0.2^2 + 0.2^2) * 2 / (2 - 1)) / 5 = 0.08, that is 8 points
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float64, Int64

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured, bin_starts, bins_per_block, difference

Selected = Int64[np.ndarray, " selected"]


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums of selected tokens, correct predictions and losses: by row and bin of positions, and by row and offset.

    A bin of offsets is half of base_positions wide. `rows_by_source` are the rows of each source, if there are several.
    """

    by_bin: Float64[np.ndarray, "3 rows bins"]
    by_offset: Float64[np.ndarray, "3 rows offsets"]
    base_positions: int
    row_length: int
    rows_by_source: Mapping[str, slice] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_rows: int, base_positions: int, row_length: int, rows_by_source: Mapping[str, slice]) -> Self:
        """Returns sums of no tokens."""
        num_blocks = math.ceil(row_length / base_positions)
        by_bin = np.zeros((3, num_rows, num_blocks * bins_per_block(base_positions)))
        return cls(by_bin, np.zeros((3, num_rows, 2 * num_blocks)), base_positions, row_length, rows_by_source)

    def add(self, row: int, positions: Selected, offsets: Selected, values: Float64[np.ndarray, "3 selected"]) -> None:
        """Adds selected tokens of a row: `positions` in it, `offsets` from where their document starts in it.

        `values` has for each token a 1, whether it was predicted correctly (1 or 0), and its loss.
        """
        bins = positions * bins_per_block(self.base_positions) // self.base_positions
        for sums, columns in ((self.by_bin, bins), (self.by_offset, 2 * offsets // self.base_positions)):
            for total, value in zip(sums, values, strict=True):
                np.add.at(total[row], columns, value)

    def over_ranks(self, accelerator: Accelerator, num_rows: int) -> Self:
        """Returns the sums over all ranks of the first `num_rows` rows."""
        own = torch.from_numpy(np.concatenate([self.by_bin, self.by_offset], axis=-1)).to(accelerator.device)
        sums = accelerator.reduce(own, "sum").cpu().numpy()[:, :num_rows]
        by_bin, by_offset = np.split(sums, [self.by_bin.shape[-1]], axis=-1)
        return replace(self, by_bin=by_bin, by_offset=by_offset)

    @property
    def measured(self) -> Measured:
        """The accuracies of whole rows, per block, per bin and by source."""
        by_row = self.by_bin.sum(-1)
        blocks = self.by_bin.reshape(*by_row.shape, -1, bins_per_block(self.base_positions)).sum(-1)
        num_bins = len(bin_starts(self.base_positions, self.row_length))
        selected, correct = (tuple(counts.astype(int).tolist()) for counts in by_row[:2])
        parts = {
            name: replace(self, by_bin=self.by_bin[:, own], by_offset=self.by_offset[:, own], rows_by_source={})
            for name, own in self.rows_by_source.items()
        }
        sources = {name: replace(part.measured, blocks=(), positions=()) for name, part in parts.items()}
        positions = _accuracies(self.by_bin[..., :num_bins])
        return Measured(_accuracy(*by_row), _accuracies(blocks), positions, selected, correct, sources)

    @property
    def measured_by_offset(self) -> tuple[Accuracy, ...]:
        """The accuracies by offset."""
        return _accuracies(self.by_offset)

    def gains_over(self, other: "Tally") -> tuple[Difference | None, ...]:
        """Returns, by offset, this accuracy minus the other's on the same tokens, paired by row."""
        mine, others = (one.by_offset.astype(int) for one in (self, other))
        columns = zip(np.moveaxis(mine[1] - others[1], 1, 0), np.moveaxis(mine[0], 1, 0), strict=True)
        return tuple(difference(gains.tolist(), totals.tolist()) for gains, totals in columns)


def _accuracies(sums: Float64[np.ndarray, "3 rows columns"]) -> tuple[Accuracy, ...]:
    return tuple(_accuracy(*column) for column in np.moveaxis(sums, 2, 0))


def _accuracy(
    selected: Float64[np.ndarray, " rows"], correct: Float64[np.ndarray, " rows"], losses: Float64[np.ndarray, " rows"]
) -> Accuracy:
    """Returns the share of correct predictions with the standard error of a ratio of totals over rows.

    The formula is in Cochran 1977, 6.4. A single row has no variance over rows, so its error is binomial.
    """
    total = selected.sum()
    if not total:
        return Accuracy(None, None, None, 0)
    share = correct.sum() / total
    num_rows = int((selected > 0).sum())
    squares = ((correct - share * selected) ** 2).sum() * num_rows / max(1, num_rows - 1)
    error = math.sqrt(squares) / total if num_rows > 1 else math.sqrt(share * (1 - share) / total)
    return Accuracy(float(100 * share), float(100 * error), float(losses.sum() / total), int(total))
