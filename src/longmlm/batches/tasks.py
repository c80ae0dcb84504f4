"""Batches of labelled documents: the inputs of all documents of a micro-batch, and their targets.

Three documents; the second has two chunks. Padded, and packed:

    input_ids   7 3 9 4 .     owners 0     input_ids     7 3 9 4 7 5 2 6 4 7 5 4 7 8 4
                7 5 2 6 4            1     row_lengths   4 5 3 3
                7 5 4 . .            1     owners        0 1 1 2
                7 8 4 . .            2
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset

from longmlm.batches.collate import InputBatch, joined_rows
from longmlm.batches.examples import IGNORED, Example
from longmlm.batches.sampling import global_batch, micro_batches, micro_batches_of_tokens
from longmlm.errors import TrainingError, counted


@dataclass(frozen=True, slots=True)
class TaskBatch(InputBatch):
    """The inputs of some documents, one after the other, and the documents' targets.

    `owners` has for each input the number of its document in this batch. `targets` are stacked over documents, or
    concatenated over tokens for labelling. `row_ids` are the documents' numbers in the corpus, `num_first` is that of
    each example.
    """

    owners: Int64[Tensor, " inputs"]
    targets: Tensor
    row_ids: tuple[int, ...] = ()
    num_first: tuple[int, ...] = ()

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.row_ids)

    @property
    def num_targets(self) -> int:
        """The number of documents or, for labelling, of tokens with a label."""
        is_class = not self.targets.is_floating_point() and self.targets.ndim == 1
        return int((self.targets != IGNORED).sum()) if is_class else len(self.targets)


def collate_examples(examples: Sequence[Example], pad: int | None) -> TaskBatch:
    """Returns examples as one batch: padded on the right to the longest input, or packed if `pad` is None."""
    inputs = [tokens for example in examples for tokens in example.inputs]
    input_ids, attention_mask, _ = joined_rows(inputs, pad)
    targets = [example.target for example in examples]
    is_labelling = examples[0].token_indices is not None
    return TaskBatch(
        input_ids,
        attention_mask,
        torch.from_numpy(np.repeat(np.arange(len(examples)), [len(example.inputs) for example in examples])),
        torch.from_numpy(np.concatenate(targets) if is_labelling else np.stack(targets)),
        tuple(example.document for example in examples),
        tuple(example.num_first for example in examples),
        row_lengths=tuple(map(len, inputs)) if pad is None else (),
    )


def documents_of(batch: TaskBatch) -> Iterator[TaskBatch]:
    """Yields the inputs of each document as a batch of its own, without padding to the inputs of others."""
    ends = np.cumsum(batch.row_lengths) if batch.row_lengths else np.zeros(0, np.int64)
    for number, row_id in enumerate(batch.row_ids):
        rows = np.flatnonzero(batch.owners.cpu().numpy() == number)
        lengths, attention_mask = tuple(batch.row_lengths[row] for row in rows if batch.row_lengths), None
        if batch.row_lengths:
            last = int(ends[rows[-1]])
            input_ids = batch.input_ids[:, last - sum(lengths) : last]
        else:
            input_ids, mask = batch.input_ids[rows], batch.attention_mask
            if mask is not None:
                longest = int(mask[rows].sum(1).max())
                input_ids, attention_mask = input_ids[:, :longest], mask[rows, :longest]
        owners = torch.zeros(len(rows), dtype=torch.int64)
        yield TaskBatch(input_ids, attention_mask, owners, batch.targets[:0], (row_id,), row_lengths=lengths)


@dataclass(frozen=True, slots=True)
class TaskBatches(Dataset[tuple[TaskBatch, ...]]):
    """Map-style dataset of micro-batches, indexed by the cursor: the documents consumed before a step.

    Each step has `rows_per_step` documents, in an order that depends on the seed alone. They are sorted by length
    before they are cut into micro-batches: of `tokens_per_micro_batch`, as many as `rows_per_micro_batch` of the
    longest documents have; in contrastive tuning, of so many rows. Without `pad`, they are packed. The negatives of a
    pair are the other pairs of its micro-batch: `min_in_micro_batch` is 2 there.
    """

    examples: Sequence[Example]
    seed: int
    rows_per_step: int
    pad: int | None
    rows_per_micro_batch: int = 1
    tokens_per_micro_batch: int | None = None
    min_in_micro_batch: int = 1

    @property
    def num_rows(self) -> int:
        """The number of documents that are drawn from."""
        return len(self.examples)

    @property
    def description(self) -> str:
        """How many documents there are, and how many tokens are read of them."""
        return f"{counted(len(self.examples), 'document')}, {counted(sum(map(len, self.examples)), 'token')}"

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which each document has been drawn; the last of them may begin the next epoch."""
        return -(-len(self.examples) // self.rows_per_step)

    def in_micro_batches_of(self, num_rows: int) -> Self:
        """Returns the same global batches in micro-batches of at most `num_rows` documents of the longest kind.

        Raises TrainingError if one of them would have fewer than `min_in_micro_batch`.
        """
        parts = micro_batches(np.zeros(self.rows_per_step, np.int64), self.rows_per_step, 1, num_rows)
        if len(parts[-1]) < self.min_in_micro_batch:
            raise TrainingError(
                f"contrastive tuning needs at least {self.min_in_micro_batch} pairs in every micro-batch: raise "
                f"recipe.documents_per_step, which is {self.rows_per_step}, or runtime.rows_per_micro_batch, or lower "
                "the arm's length"
            )
        if self.min_in_micro_batch > 1:
            return replace(self, rows_per_micro_batch=num_rows)
        num_tokens = num_rows * max(len(example.inputs) * example.longest for example in self.examples)
        return replace(self, rows_per_micro_batch=num_rows, tokens_per_micro_batch=num_tokens)

    def __getitem__(self, index: int) -> tuple[TaskBatch, ...]:
        draw = global_batch(index, self.rows_per_step, len(self.examples), self.seed)
        drawn = [self.examples[number] for number in draw.row_ids.tolist()]
        if self.tokens_per_micro_batch is None:
            lengths = np.array([len(example) for example in drawn])
            parts = micro_batches(lengths, self.rows_per_step, 1, self.rows_per_micro_batch)
        else:
            longest = np.array([example.longest for example in drawn])
            num_inputs = np.array([len(example.inputs) for example in drawn])
            parts = micro_batches_of_tokens(longest, num_inputs, self.tokens_per_micro_batch)
        return tuple(collate_examples([drawn[number] for number in part], self.pad) for part in parts)
