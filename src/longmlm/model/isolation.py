"""Isolation of the documents in a padded batch: the attention mask, in the form that each family of transformers takes.

A token attends to its own document only; positions do not restart at documents. For example, [CLS] a [SEP] b b
[SEP], padded to 7 tokens, has the isolated lengths 3 3 1, and a cross marks what a token (line) attends to:

    [CLS]  x x x . . . .
    a      x x x . . . .
    [SEP]  x x x . . . .    a separator belongs to the document that it ends, [CLS] to the first
    b      . . . x x x .
    b      . . . x x x .
    [SEP]  . . . x x x .
    [PAD]  . . . . . . x    so that no line is empty

Packed batches need no mask: to their attention, also within a window, each document is a row.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch
from longmlm.model.packed_attention import attention_name


def is_same_document(batch: MlmBatch) -> Bool[Tensor, "rows 1 length length"]:
    """Returns which tokens of a padded batch are in the same document, or in the same row's padding."""
    lengths = torch.tensor(batch.isolated_lengths)
    numbers = torch.repeat_interleave(lengths).view_as(batch.input_ids).to(batch.input_ids.device, non_blocking=True)
    return numbers[:, None, :, None] == numbers[:, None, None, :]


def isolation_mask(encoder: PreTrainedModel, batch: MlmBatch) -> Tensor | dict[str, Tensor]:
    """Returns the attention mask of a padded batch: the terms that eager attention adds to its scores, else a bool.

    ModernBERT gets one for its global layers and one for its local ones: it would apply a single one to both.
    """
    masks = {"full_attention": is_same_document(batch)}
    if encoder.config.model_type == "modernbert":
        index = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        is_near = (index[:, None] - index).abs() <= encoder.config.sliding_window
        masks["sliding_attention"] = masks["full_attention"] & is_near
    if attention_name(encoder) == "eager":
        kind = batch.input_ids.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32  # of the scores
        lowest = torch.finfo(dtype).min
        masks = {
            name: mask.new_zeros(mask.shape, dtype=dtype).masked_fill_(~mask, lowest) for name, mask in masks.items()
        }
    return masks if len(masks) > 1 else masks["full_attention"]


def deberta_states(encoder: PreTrainedModel, batch: MlmBatch) -> Float[Tensor, "rows length width"]:
    """Returns the last hidden states of a DeBERTa, whose layers take such a mask, but whose embeddings do not."""
    parts = cast(Any, encoder)
    return parts.encoder(parts.embeddings(batch.input_ids), is_same_document(batch)).last_hidden_state
