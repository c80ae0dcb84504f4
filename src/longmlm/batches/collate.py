"""Collation of masked rows into one batch of tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from longmlm.batches.masking import MaskedRow


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class MlmBatch:
    """Rows as the model sees them; `selected` and `document_starts` are indices into the flattened `input_ids`.

    `labels` holds the original tokens at `selected`, `document_sources` the source of each document's part.
    `attention_mask` is None when all rows are equally long, which allows the flash kernel. `row_ids` identify the rows.
    """

    input_ids: Int64[Tensor, "rows length"]
    attention_mask: Bool[Tensor, "rows length"] | None
    selected: Int64[Tensor, " selected"]
    labels: Int64[Tensor, " selected"]
    row_ids: tuple[int, ...] = ()
    document_starts: Int64[Tensor, " documents"] = field(default_factory=_empty)
    document_sources: Int64[Tensor, " documents"] = field(default_factory=_empty)

    @property
    def num_targets(self) -> int:
        """The number of selected tokens."""
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""
        return self.input_ids.numel() if self.attention_mask is None else int(self.attention_mask.sum())

    @property
    def num_padded(self) -> int:
        """The number of tokens with padding."""
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


def collate(masked: Sequence[MaskedRow], pad: int, row_ids: Sequence[int] = ()) -> MlmBatch:
    """Returns masked rows as one batch, padded on the right to the longest."""
    rows = [item.row for item in masked]
    lengths = np.array([len(row) for row in rows])
    longest = int(lengths.max())
    is_token = np.arange(longest) < lengths[:, None]
    input_ids = np.full(is_token.shape, pad, dtype=np.int64)
    input_ids[is_token] = np.concatenate([row.input_ids for row in rows])
    return MlmBatch(
        torch.from_numpy(input_ids),
        None if is_token.all() else torch.from_numpy(is_token),
        _flattened([item.selected for item in masked], longest),
        _joined([item.labels for item in masked]),
        tuple(row_ids),
        _flattened([row.document_starts for row in rows], longest),
        _joined([row.document_sources for row in rows]),
    )


def _flattened(positions: Sequence[np.ndarray], length: int) -> Int64[Tensor, " n"]:
    """Returns positions in rows as indices into the flattened batch."""
    return _joined([number * length + in_row for number, in_row in enumerate(positions)])


def _joined(columns: Sequence[np.ndarray]) -> Int64[Tensor, " n"]:
    return torch.from_numpy(np.concatenate(columns).astype(np.int64, copy=False))
