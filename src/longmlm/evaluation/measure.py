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
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float64
from tqdm import tqdm

from longmlm.artifacts.accuracy import Accuracy, Measured, bin_starts, bins_per_block
from longmlm.batches.collate import collate
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.views import Viewer
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.watchdog import heartbeat


def measure(
    objective: MlmObjective,
    frozen: FrozenRows,
    view: Viewer,
    base_positions: int,
    accelerator: Accelerator,
    name: str = "",
) -> Measured:
    """Returns the accuracy with which the model predicts the selected tokens; a `name` shows a progress bar.

    The ranks share the rows and add up their sums. Every rank gets equally many rows, as collectives inside the model
    require: some rows are repeated, and not counted. The model's training mode is restored.
    """
    row_ids, bins = frozen.row_ids, bins_per_block(base_positions)
    num_indices = math.ceil(len(row_ids) / accelerator.num_processes) * accelerator.num_processes
    num_blocks = math.ceil(frozen.rows.row_length / base_positions)
    sums = np.zeros((3, num_indices, num_blocks * bins))
    share = range(accelerator.process_index, num_indices, accelerator.num_processes)
    progress = tqdm(share, desc=name, unit="row", leave=False, disable=not (name and accelerator.is_main_process))
    was_training = objective.training
    objective.eval()
    masked_rows = ((index, frozen.masked(row_ids[index % len(row_ids)])) for index in progress)
    views = ((index, shown) for index, masked in masked_rows for shown in view(masked) if len(shown.positions))
    with torch.inference_mode():
        while chunk := list(islice(views, frozen.rows_per_batch)):
            batch = collate([shown.masked for _, shown in chunk], frozen.special.pad).to(accelerator.device)
            heartbeat()
            output = objective.predict(batch)
            row_index = np.repeat([index for index, _ in chunk], [len(shown.positions) for _, shown in chunk])
            bin_index = np.concatenate([shown.positions for _, shown in chunk]) * bins // base_positions
            for total, values in zip(
                sums, (torch.ones_like(output.losses), output.is_correct, output.losses), strict=True
            ):
                np.add.at(total, (row_index, bin_index), values.double().cpu().numpy())
    objective.train(was_training)
    sums = accelerator.reduce(torch.from_numpy(sums).to(accelerator.device), "sum").cpu().numpy()[:, : len(row_ids)]
    per_block = sums.reshape(3, len(row_ids), num_blocks, bins).sum(-1)
    num_bins = len(bin_starts(base_positions, frozen.rows.row_length))
    return Measured(_accuracy(*sums.sum(-1)), _per_column(per_block), _per_column(sums[..., :num_bins]))


def _per_column(sums: Float64[np.ndarray, "3 rows columns"]) -> tuple[Accuracy, ...]:
    return tuple(_accuracy(*column) for column in np.moveaxis(sums, 2, 0))


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
