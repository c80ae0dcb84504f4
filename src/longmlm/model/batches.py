"""Rows, sampling and masking to batches: the first torch tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from longmlm.data.config import Masking
from longmlm.data.masking import MaskedRow, mask_row
from longmlm.data.rows import Rows
from longmlm.data.sampling import Draw, global_batch, micro_batches
from longmlm.data.vocabulary import Maskable, Vocabulary
from longmlm.errors import DataError, TrainingError
from longmlm.model.architecture import architecture_of


@dataclass(frozen=True, slots=True)
class MlmBatch:
    """Rows as the model sees them; `selected` are places in the flattened batch, `labels` what stood there.

    `attention_mask` is absent when every row is full, which keeps the flash kernel. `row_ids` tells where the rows
    come from.
    """

    input_ids: Int64[Tensor, "rows length"]
    attention_mask: Bool[Tensor, "rows length"] | None
    selected: Int64[Tensor, " selected"]
    labels: Int64[Tensor, " selected"]
    row_ids: tuple[int, ...] = ()

    def to(self, device: torch.device) -> Self:
        """Returns the batch on `device`."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Returns the batch in page-locked memory, from which copies to a GPU overlap with work."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, move: Callable[[Tensor], Tensor]) -> Self:
        mask = None if self.attention_mask is None else move(self.attention_mask)
        moved = {name: move(getattr(self, name)) for name in ("input_ids", "selected", "labels")}
        return replace(self, attention_mask=mask, **moved)


def collate(rows: Sequence[MaskedRow], pad: int, row_ids: Sequence[int] = ()) -> MlmBatch:
    """Returns masked rows as one batch, shorter ones padded on the right to the longest."""
    lengths = np.array([len(row.input_ids) for row in rows])
    longest = int(lengths.max())
    input_ids = np.full((len(rows), longest), pad, dtype=np.int64)
    for place, row in enumerate(rows):
        input_ids[place, : len(row.input_ids)] = row.input_ids
    is_full = bool((lengths == longest).all())
    return MlmBatch(
        torch.from_numpy(input_ids),
        None if is_full else torch.from_numpy(np.arange(longest) < lengths[:, None]),
        torch.from_numpy(np.concatenate([place * longest + row.selected for place, row in enumerate(rows)])),
        torch.from_numpy(np.concatenate([row.labels for row in rows])),
        tuple(int(row_id) for row_id in row_ids),
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the batches of a run, whatever runs it."""

    seed: int
    rows_per_step: int
    masking: Masking
    vocabulary: Maskable
    pad: int


def refuse_unreadable(rows: Rows, vocabulary: Vocabulary, model: PreTrainedModel | None = None) -> None:
    """Raises DataError when rows were made by another tokenizer, or, with a model, are longer than it can read."""
    if not rows.is_made_by(vocabulary):
        raise DataError(
            f"the rows were made by another tokenizer than that of {vocabulary.name}: prepare them with its own"
        )
    if model is not None and rows.row_length > (num_positions := architecture_of(model).num_positions):
        raise DataError(
            f"the rows have {rows.row_length} tokens, {vocabulary.name} reads {num_positions}: extend it first, or "
            "prepare shorter rows"
        )


def rows_per_step(batch_tokens: int, rows: Rows, num_processes: int) -> int:
    """Returns the rows whose mean number of tokens makes a global batch of `batch_tokens`.

    Raises TrainingError when that leaves a process without a row.
    """
    num_rows = round(batch_tokens / (rows.row_length * rows.mean_fill))
    if num_rows < num_processes:
        raise TrainingError(
            f"batch_tokens = {batch_tokens} gives {num_rows} rows of {rows.row_length} for {num_processes} processes: "
            f"set it to {num_processes * rows.row_length} at least"
        )
    return num_rows


@dataclass(frozen=True, slots=True)
class StepBatches(Dataset[tuple[MlmBatch, ...]]):
    """Map-style data set from a step's number (from 0) to this process' micro-batches of that step."""

    rows: Rows
    recipe: Recipe
    rank: int
    num_processes: int
    rows_per_micro_batch: int

    def __getitem__(self, index: int) -> tuple[MlmBatch, ...]:
        recipe = self.recipe
        draw = global_batch(index * recipe.rows_per_step, recipe.rows_per_step, len(self.rows), recipe.seed)
        shares = micro_batches(draw, self.rank, self.num_processes, self.rows_per_micro_batch)
        return tuple(self._masked(share) for share in shares)

    def _masked(self, draw: Draw) -> MlmBatch:
        recipe = self.recipe
        masked = [
            mask_row(self.rows.tokens(row_id), recipe.vocabulary, recipe.masking, recipe.seed, visit, row_id)
            for row_id, visit in zip(draw.row_ids.tolist(), draw.visits.tolist(), strict=True)
        ]
        return collate(masked, recipe.pad, draw.row_ids.tolist())
