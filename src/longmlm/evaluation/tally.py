"""Accuracy from sums over held-out rows: of masked tokens in whole rows, per block, bin and group, and of pairs.

Everything follows from three sums per row and group: predicted units, correct predictions, losses. The units of a row
are its selected tokens, which are grouped by bins of positions and in other ways; or the pair made from it, in the
group of its label. For example, blocks of 4 positions with one bin each, two rows of 8 tokens: row 0 has selected
positions 1 and 6, row 1 has 2, 3 and 5, and the model is right at position 1 of row 0 and position 3 of row 1.

    selected  [[1, 1],    correct  [[1, 0],    a line per row, a column per block
               [2, 1]]              [1, 0]]

    whole rows: 2 of 5 = 40 % (not 41.7 %, the mean of the rows' 1/2 and 1/3); blocks: 2 of 3 = 66.7 %, 0 of 2 = 0 %
    standard error of the 40 %: per row, correct - 0.4 * selected = 0.2 and -0.2, so
    sqrt((0.2^2 + 0.2^2) * 2 / (2 - 1)) / 5 = 0.08, that is 8 points
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float64

from longmlm.artifacts.accuracy import (
    GROUPINGS,
    Accuracy,
    Difference,
    Grouping,
    Measured,
    PairAccuracy,
    bin_starts,
    bins_per_block,
    difference,
    group_ends,
    group_names,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums of selected tokens, correct predictions and losses by row and group, those of all groupings side by side.

    `rows_by_source` are the rows of each source, if there are several.
    """

    sums: Float64[np.ndarray, "3 rows groups"]
    base_positions: int
    row_length: int
    rows_by_source: Mapping[str, slice]

    @property
    def measured(self) -> Measured:
        """The accuracies of whole rows, per block, per bin, by source and by group."""
        parts = self.by_grouping()
        by_bin = parts.pop("position")
        by_row = by_bin.sum(-1)
        blocks = by_bin.reshape(*by_row.shape, -1, bins_per_block(self.base_positions)).sum(-1)
        num_bins = len(bin_starts(self.base_positions, self.row_length))
        selected, correct = (tuple(counts.astype(int).tolist()) for counts in by_row[:2])
        sources = {
            name: replace(self, sums=self.sums[:, own], rows_by_source={}).measured
            for name, own in self.rows_by_source.items()
        }
        sources = {name: replace(one, blocks=(), positions=(), groups={}) for name, one in sources.items()}
        positions = _accuracies(by_bin[..., :num_bins])
        groups = {grouping: self._named(grouping, _accuracies(sums)) for grouping, sums in parts.items()}
        return Measured(_accuracy(*by_row), _accuracies(blocks), positions, selected, correct, sources, groups)

    def gains_over(self, other: "Tally") -> dict[Grouping, dict[str, Difference | None]]:
        """Returns, by group, this accuracy minus the other's on the same tokens, paired by row."""
        sums, others = self.by_grouping(), other.by_grouping()
        del sums["position"]
        gains = {}
        for grouping, (selected, correct, _) in sums.items():
            columns = zip((correct - others[grouping][1]).T, selected.T, strict=True)
            differences = [difference(*(column.astype(int).tolist() for column in pair)) for pair in columns]
            gains[grouping] = self._named(grouping, differences)
        return gains

    def by_grouping(self) -> dict[Grouping, Float64[np.ndarray, "3 rows groups"]]:
        """Returns the sums of each grouping."""
        ends = group_ends(self.base_positions, self.row_length)
        return dict(zip(GROUPINGS, np.split(self.sums, ends[:-1], axis=-1), strict=True))

    def _named(self, grouping: Grouping, values: Sequence[Value]) -> dict[str, Value]:
        names = group_names(grouping, self.base_positions, self.row_length)
        return dict(zip(names, values, strict=True))


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


def pair_accuracy(sums: Float64[np.ndarray, "3 rows labels"]) -> PairAccuracy | None:
    """Returns the accuracy on pairs; None unless both labels occur."""
    by_label = sums[0].sum(0)
    if not by_label.all():
        return None
    num_pairs, share = int(by_label.sum()), float(sums[1].sum() / by_label.sum())
    return PairAccuracy(
        accuracy=100 * share,
        standard_error=100 * math.sqrt(share * (1 - share) / num_pairs),
        loss=float(sums[2].sum(-1).sum() / num_pairs),
        num_pairs=num_pairs,
        larger_share=float(100 * max(by_label) / num_pairs),
    )
