"""Masked rows to a batch of tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from longmlm.batches.masking import MaskedRow


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

    @property
    def num_targets(self) -> int:
        """The number of selected tokens."""
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""
        return self.input_ids.numel() if self.attention_mask is None else int(self.attention_mask.sum())

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
