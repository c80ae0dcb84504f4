"""Masked-token accuracy of a model on held-out rows: of whole rows, per block, and per bin of positions.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float64
from torch import nn

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured, bin_starts, bins_per_block, difference
from longmlm.batches.collate import collate
from longmlm.evaluation.frozen import FrozenRows, Viewer
from longmlm.model.mlm import MlmObjective
from longmlm.progress import Progress
from longmlm.runtime.watchdog import heartbeat


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums of selected tokens, correct predictions and losses, by row, bin of positions, and offset.

    The offset of a token is the number of tokens from the start of its document in the row, in bins of half of
    base_positions.
    """

    sums: Float64[np.ndarray, "3 rows bins offsets"]
    base_positions: int
    row_length: int

    @property
    def measured(self) -> Measured:
        """The accuracies."""
        bins = bins_per_block(self.base_positions)
        by_bin = self.sums.sum(-1)
        by_row = by_bin.sum(-1)
        blocks = by_bin.reshape(*by_bin.shape[:2], -1, bins).sum(-1)
        num_bins = len(bin_starts(self.base_positions, self.row_length))
        per_block, per_bin = (
            tuple(_accuracy(*column) for column in np.moveaxis(columns, 2, 0))
            for columns in (blocks, by_bin[..., :num_bins])
        )
        selected, correct = (tuple(counts.astype(int).tolist()) for counts in by_row[:2])
        return Measured(_accuracy(*by_row), per_block, per_bin, selected, correct)

    @property
    def by_offset(self) -> tuple[Accuracy, ...]:
        """The accuracies by offset."""
        return tuple(_accuracy(*column) for column in np.moveaxis(self.sums.sum(2), 2, 0))

    def gains_over(self, other: "Tally") -> tuple[Difference | None, ...]:
        """Returns, by offset, this accuracy minus the other's on the same tokens, paired by row."""
        mine, others = (one.sums.sum(2).astype(int) for one in (self, other))
        columns = zip(np.moveaxis(mine[1] - others[1], 1, 0), np.moveaxis(mine[0], 1, 0), strict=True)
        return tuple(difference(gains.tolist(), totals.tolist()) for gains, totals in columns)


def measure(
    objective: MlmObjective,
    frozen: FrozenRows,
    view: Viewer,
    base_positions: int,
    accelerator: Accelerator | None,
    name: str = "",
) -> Measured:
    """Returns the model's accuracy on the selected tokens; shows progress under `name`, if there is one."""
    return tally(objective, frozen, view, base_positions, accelerator, name).measured


def tally(
    objective: MlmObjective,
    frozen: FrozenRows,
    view: Viewer,
    base_positions: int,
    accelerator: Accelerator | None,
    name: str = "",
) -> Tally:
    """Returns the sums from which the model's accuracy on the selected tokens follows; see `measure`.

    The ranks share the rows and add up their sums. Every rank gets equally many rows, as collectives inside the model
    require: some rows are repeated, and not counted. Without an accelerator, this process measures alone, on the
    model's device.
    """
    row_ids, bins = frozen.row_ids, bins_per_block(base_positions)
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    device = accelerator.device if accelerator else objective.model.device
    num_indices = math.ceil(len(row_ids) / num_processes) * num_processes
    row_length = frozen.rows.row_length
    num_blocks = math.ceil(row_length / base_positions)
    sums = np.zeros((3, num_indices, num_blocks * bins, 2 * num_blocks))
    share = range(rank, num_indices, num_processes)
    progress = Progress(name, len(share), "row", is_shown=bool(name) and rank == 0)
    masked_rows = ((index, frozen.masked(row_ids[index % len(row_ids)])) for index in progress.over(share))
    views = ((index, masked, shown) for index, masked in masked_rows for shown in view(masked) if len(shown.positions))
    with progress, inference(objective):
        while chunk := list(islice(views, frozen.rows_per_batch)):
            batch = collate([shown.masked for _, _, shown in chunk], frozen.special.pad).to(device)
            heartbeat()
            losses, is_correct = objective.predict(batch)
            positions = [shown.positions for _, _, shown in chunk]
            row_index = np.repeat([index for index, _, _ in chunk], [*map(len, positions)])
            offsets = np.concatenate([masked.row.document_offsets(shown.positions) for _, masked, shown in chunk])
            cells = (row_index, np.concatenate(positions) * bins // base_positions, 2 * offsets // base_positions)
            values = torch.stack([torch.ones_like(losses), is_correct.to(losses), losses]).double().cpu().numpy()
            for total, value in zip(sums, values, strict=True):
                np.add.at(total, cells, value)
    if accelerator:
        sums = accelerator.reduce(torch.from_numpy(sums).to(device), "sum").cpu().numpy()
    return Tally(sums[:, : len(row_ids)], base_positions, row_length)


@contextmanager
def inference(objective: nn.Module) -> Iterator[None]:
    """Turns gradients and dropout off, and restores each module's mode, also when an evaluation is abandoned."""
    modes = [(module, module.training) for module in objective.modules()]
    objective.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def _accuracy(
    selected: Float64[np.ndarray, " rows"], correct: Float64[np.ndarray, " rows"], losses: Float64[np.ndarray, " rows"]
) -> Accuracy:
    """Returns the share of correct predictions with the standard error of a ratio of totals over rows.

    The formula is that of Cochran 1977, 6.4. One row alone has no variance over rows: then the error is binomial.
    """
    total = selected.sum()
    if not total:
        return Accuracy(None, None, None, 0)
    share = correct.sum() / total
    num_rows = int((selected > 0).sum())
    squares = ((correct - share * selected) ** 2).sum() * num_rows / max(1, num_rows - 1)
    error = math.sqrt(squares) / total if num_rows > 1 else math.sqrt(share * (1 - share) / total)
    return Accuracy(float(100 * share), float(100 * error), float(losses.sum() / total), int(total))
