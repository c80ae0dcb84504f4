"""Masked-token accuracy of a model on held-out rows: whole rows, blocks and bins of positions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float64
from torch import nn
from tqdm import tqdm

from longmlm.batches.collate import collate
from longmlm.batches.masking import MaskedRow
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.views import View

BINS_PER_BLOCK = 8

LEAST_BIN = 16


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Percent of the selected tokens told, its standard error, and the mean cross-entropy in nats."""

    accuracy: float
    standard_error: float
    loss: float
    num_selected: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracy on whole rows, in each block of positions and, finer, in the bins of `bin_starts`."""

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...]


def bins_per_block(block: int) -> int:
    """Returns into how many parts a block is cut for accuracy by position: as many as leave each wide enough."""
    return max(1, min(BINS_PER_BLOCK, block // LEAST_BIN))


def bin_starts(block: int, row_length: int) -> list[int]:
    """Returns the first position of each bin of a row; bins are equal parts of a block, to a position."""
    parts = bins_per_block(block)
    starts = (begin - -part * block // parts for begin in range(0, row_length, block) for part in range(parts))
    return [start for start in starts if start < row_length]


def measure(
    objective: nn.Module,
    frozen: FrozenRows,
    view: Callable[[MaskedRow], list[View]],
    block: int,
    accelerator: Accelerator,
    name: str = "",
) -> Measured:
    """Returns how well the model tells the selected tokens of each view; `block` is the length of a block.

    Sums, not means of means: rows are shared out over the processes, hits and losses added up per row and bin of
    positions. Shares are equal, as a model whose parameters are shared out wants: some rows come up again, uncounted.
    The model is put back into the mode that it was in.
    """
    row_ids = frozen.row_ids
    parts = bins_per_block(block)
    num_places = math.ceil(len(row_ids) / accelerator.num_processes) * accelerator.num_processes
    sums = np.zeros((3, num_places, math.ceil(frozen.rows.row_length / block) * parts))
    mine = range(accelerator.process_index, num_places, accelerator.num_processes)
    shown = tqdm(mine, desc=name, unit="row", leave=False, disable=not (name and accelerator.is_main_process))
    was_training = objective.training
    objective.eval()
    masked = ((place, frozen.masked(row_ids[place % len(row_ids)])) for place in shown)
    views = ((place, one) for place, row in masked for one in view(row) if len(one.places))
    with torch.inference_mode():
        while some := list(islice(views, frozen.rows_per_batch)):
            batch = collate([one.masked for _, one in some], frozen.special.pad).to(accelerator.device)
            told = objective(batch)
            at_row = np.repeat([place for place, _ in some], [len(one.places) for _, one in some])
            at_bin = np.concatenate([one.places for _, one in some]) * parts // block
            for total, values in zip(sums, (None, told.hits, told.losses), strict=True):
                added = 1.0 if values is None else values.double().cpu().numpy()
                np.add.at(total, (at_row, at_bin), added)
    objective.train(was_training)
    sums = accelerator.reduce(torch.from_numpy(sums).to(accelerator.device), "sum").cpu().numpy()[:, : len(row_ids)]
    in_blocks = sums.reshape(3, len(row_ids), -1, parts).sum(-1)
    num_bins = len(bin_starts(block, frozen.rows.row_length))
    return Measured(_accuracy(*sums.sum(-1)), _each(in_blocks), _each(sums[..., :num_bins]))


def _each(sums: Float64[np.ndarray, "3 rows spans"]) -> tuple[Accuracy, ...]:
    return tuple(_accuracy(*column) for column in np.moveaxis(sums, 2, 0))


def _accuracy(
    counts: Float64[np.ndarray, " rows"], hits: Float64[np.ndarray, " rows"], losses: Float64[np.ndarray, " rows"]
) -> Accuracy:
    """Returns the share of hits with the standard error of a ratio of totals over rows (Cochran 1977, 6.4).

    A single row tells nothing of the scatter over rows: then the error is the binomial one.
    """
    total = counts.sum()
    if not total:
        return Accuracy(math.nan, math.nan, math.nan, 0)
    share = hits.sum() / total
    num_rows = int((counts > 0).sum())
    scatter = ((hits - share * counts) ** 2).sum() * num_rows / max(1, num_rows - 1)
    error = math.sqrt(scatter) / total if num_rows > 1 else math.sqrt(share * (1 - share) / total)
    return Accuracy(float(100 * share), float(100 * error), float(losses.sum() / total), int(total))
