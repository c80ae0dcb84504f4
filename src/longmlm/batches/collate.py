"""Collation of rows into one batch of tensors, padded or packed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from longmlm.batches.masking import MaskedRow
from longmlm.batches.pairs import NO_PAIR, PairedRow

Target = Literal["mlm", "pair"]  # what a loss is computed on


@dataclass(frozen=True, slots=True)
class MlmBatch:
    """Some rows as the model sees them: padded on the right, or packed.

    `attention_mask` is None when all rows are equally long. In a packed batch, `input_ids` is one sequence in which the
    rows follow each other, and `row_lengths` has their lengths; else it is empty. `selected` holds indices into the
    flattened `input_ids`, `labels` the original tokens there. `row_ids` identify the rows.

    If documents are isolated, `isolated_lengths` has the lengths of the parts of the flattened `input_ids` that attend
    to themselves only: each document and, in a padded batch, the padding of each row.

    A batch of pairs has token types; `pair_starts` are the indices of the first tokens of its pairs, `pair_labels`
    whether the second segment is a negative (1) or not (0). Rows that are not a pair are left out.
    """

    input_ids: Int64[Tensor, "rows length"]
    attention_mask: Bool[Tensor, "rows length"] | None
    selected: Int64[Tensor, " selected"]
    labels: Int64[Tensor, " selected"]
    row_ids: tuple[int, ...] = ()
    row_lengths: tuple[int, ...] = field(default=(), kw_only=True)
    isolated_lengths: tuple[int, ...] = field(default=(), kw_only=True)
    token_type_ids: Int64[Tensor, "rows length"] | None = field(default=None, kw_only=True)
    pair_starts: Int64[Tensor, " pairs"] | None = field(default=None, kw_only=True)
    pair_labels: Int64[Tensor, " pairs"] | None = field(default=None, kw_only=True)

    @property
    def num_targets(self) -> dict[Target, int]:
        """The numbers of selected tokens and, in a batch of pairs, of pairs."""
        pairs: dict[Target, int] = {} if self.pair_labels is None else {"pair": len(self.pair_labels)}
        return {"mlm": len(self.labels), **pairs}

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""
        return self.input_ids.numel() if self.attention_mask is None else int(self.attention_mask.sum())

    @property
    def num_with_padding(self) -> int:
        """The number of tokens, padding included."""
        return self.input_ids.numel()

    def to(self, device: torch.device) -> Self:
        """Returns the batch on `device`."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Returns the batch in page-locked memory, from which copies to a GPU overlap with computation."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, move: Callable[[Tensor], Tensor]) -> Self:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{name: move(value) for name, value in values.items() if isinstance(value, Tensor)})


def _joined_rows(
    rows: Sequence[np.ndarray], pad: int | None
) -> tuple[Int64[Tensor, "rows length"], Bool[Tensor, "rows length"] | None, Int64[np.ndarray, " inputs"]]:
    """Returns rows as the tensors of one batch, padded or, if `pad` is None, packed, and where each begins in it."""
    lengths = np.array([len(row) for row in rows])
    input_ids = np.concatenate(rows).astype(np.int64, copy=False)[None]
    if pad is None:
        return torch.from_numpy(input_ids), None, np.cumsum(lengths) - lengths
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, pad, dtype=np.int64)
    padded[is_token] = input_ids[0]
    attention_mask = None if is_token.all() else torch.from_numpy(is_token)
    return torch.from_numpy(padded), attention_mask, np.arange(len(rows)) * lengths.max()


def collate(
    masked: Sequence[MaskedRow], pad: int | None, row_ids: Sequence[int] = (), isolates_documents: bool = False
) -> MlmBatch:
    """Returns masked rows as one batch: padded on the right to the longest, or packed if `pad` is None."""
    rows = [item.row for item in masked]
    input_ids, attention_mask, starts = _joined_rows([row.input_ids for row in rows], pad)
    selected = [start + item.selected for start, item in zip(starts, masked, strict=True)]
    lengths = tuple(map(len, rows)) if pad is None else ()
    labels = _joined([item.labels for item in masked])
    batch = MlmBatch(input_ids, attention_mask, _joined(selected), labels, tuple(row_ids), row_lengths=lengths)
    if isolates_documents:
        parts = [[*row.document_lengths, *([] if pad is None else [input_ids.shape[1] - len(row)])] for row in rows]
        batch = replace(batch, isolated_lengths=tuple(length for part in parts for length in part if length))
    pairs = [row for row in rows if isinstance(row, PairedRow)]
    return _with_pairs(batch, pairs, starts) if pairs else batch


def _with_pairs(batch: MlmBatch, pairs: Sequence[PairedRow], starts: Int64[np.ndarray, " rows"]) -> MlmBatch:
    """Returns the batch of these pairs, which begin at `starts`, with token types and labels."""
    types = [(np.arange(len(row)) >= row.second_start).astype(np.int64) for row in pairs]
    token_type_ids, _, _ = _joined_rows(types, None if batch.row_lengths else 0)
    labels = np.array([row.label for row in pairs])
    is_pair = labels != NO_PAIR
    pair_starts, pair_labels = torch.from_numpy(starts[is_pair]), torch.from_numpy(labels[is_pair])
    return replace(batch, token_type_ids=token_type_ids, pair_starts=pair_starts, pair_labels=pair_labels)


def _joined(columns: Sequence[np.ndarray]) -> Int64[Tensor, " n"]:
    return torch.from_numpy(np.concatenate(columns).astype(np.int64, copy=False))
