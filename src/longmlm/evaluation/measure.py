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
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float64
from torch import nn

from longmlm.artifacts.accuracy import Accuracy, Measured, bin_starts, bins_per_block
from longmlm.batches.collate import collate
from longmlm.evaluation.frozen import FrozenRows, Viewer
from longmlm.model.mlm import MlmObjective
from longmlm.progress import Progress
from longmlm.runtime.watchdog import heartbeat


def measure(
    objective: MlmObjective,
    frozen: FrozenRows,
    view: Viewer,
    base_positions: int,
    accelerator: Accelerator | None,
    name: str = "",
) -> Measured:
    """Returns the model's accuracy on the selected tokens; shows progress under `name`, if there is one.

    The ranks share the rows and add up their sums. Every rank gets equally many rows, as collectives inside the model
    require: some rows are repeated, and not counted. Without an accelerator, this process measures alone, on the
    model's device.
    """
    row_ids, bins = frozen.row_ids, bins_per_block(base_positions)
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    device = accelerator.device if accelerator else objective.model.device
    num_indices = math.ceil(len(row_ids) / num_processes) * num_processes
    num_blocks = math.ceil(frozen.rows.row_length / base_positions)
    sums = np.zeros((3, num_indices, num_blocks * bins))
    share = range(rank, num_indices, num_processes)
    progress = Progress(name, len(share), "row", is_shown=bool(name) and rank == 0)
    masked_rows = ((index, frozen.masked(row_ids[index % len(row_ids)])) for index in progress.over(share))
    views = ((index, shown) for index, masked in masked_rows for shown in view(masked) if len(shown.positions))
    with progress, inference(objective):
        while chunk := list(islice(views, frozen.rows_per_batch)):
            batch = collate([shown.masked for _, shown in chunk], frozen.special.pad).to(device)
            heartbeat()
            losses, is_correct = objective.predict(batch)
            row_index = np.repeat([index for index, _ in chunk], [len(shown.positions) for _, shown in chunk])
            bin_index = np.concatenate([shown.positions for _, shown in chunk]) * bins // base_positions
            values = torch.stack([torch.ones_like(losses), is_correct.to(losses), losses]).double().cpu().numpy()
            for total, value in zip(sums, values, strict=True):
                np.add.at(total, (row_index, bin_index), value)
    if accelerator:
        sums = accelerator.reduce(torch.from_numpy(sums).to(device), "sum").cpu().numpy()
    sums = sums[:, : len(row_ids)]
    blocks = sums.reshape(3, len(row_ids), num_blocks, bins).sum(-1)
    num_bins = len(bin_starts(base_positions, frozen.rows.row_length))
    per_block, per_bin = (
        tuple(_accuracy(*column) for column in np.moveaxis(columns, 2, 0)) for columns in (blocks, sums[..., :num_bins])
    )
    selected, correct = (tuple(counts.astype(int).tolist()) for counts in sums[:2].sum(-1))
    return Measured(_accuracy(*sums.sum(-1)), per_block, per_bin, selected, correct)


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
