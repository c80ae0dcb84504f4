"""Heads of arms: one over chunks whose vectors are pooled into one, and transformers' own on a frozen encoder.

A chunk's vector is the last hidden state of its first token. Three documents of 1, 2 and 1 chunks are pooled as

    vectors 0 1 2 3, owners 0 1 1 2     ->     0 -     is_chunk  1 0     ->     one vector per document
                                               1 2               1 1
                                               3 -               1 0
"""

import hashlib
from typing import Any, assert_never

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from longmlm.downstream.settings import Pooling
from longmlm.model.architecture import set_dropout, without_pooler

KERNEL = 3  # chunks that the CNN sees together
DROPOUT = 0.1  # before the classifier, and in the attention over chunks
MAX_ROUNDING = 1e-4  # of a logit
ROWS = 8  # inputs of a frozen encoder that are computed at once


class ChunkClassifier(PreTrainedModel):
    """An encoder with a head that pools its chunk vectors and computes the logits of each document.

    Its config is the encoder's with `chunk_pooling` in addition: transformers itself cannot load such a model.
    """

    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True  # as the encoder, which is made first

    def __init__(self, config: PreTrainedConfig) -> None:
        encoder = AutoModel.from_config(config)
        super().__init__(config)
        self.encoder = without_pooler(encoder)
        self.pooling = ChunkPooling(config.chunk_pooling, config.hidden_size, config.num_attention_heads)
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(config.hidden_size, len(config.id2label or {}))
        self.post_init()

    @classmethod
    def around(cls, encoder: PreTrainedModel, **values: object) -> "ChunkClassifier":
        """Returns a new classifier of an encoder's chunks; `values` are set in its config."""
        for key, value in values.items():
            setattr(encoder.config, key, value)
        model = cls(encoder.config)
        model.encoder = without_pooler(encoder)
        return model

    def forward(self, owners: Int64[Tensor, " chunks"], **inputs: Tensor) -> SequenceClassifierOutput:
        """Returns the logits of each document, `owners` having the document of each chunk, in order."""
        vectors = self.encoder(**inputs).last_hidden_state[:, 0]
        counts = torch.bincount(owners)
        is_chunk = torch.arange(int(counts.max()), device=owners.device) < counts[:, None]
        chunks = vectors.new_zeros(*is_chunk.shape, vectors.shape[1])
        chunks[is_chunk] = vectors
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(self.pooling(chunks, is_chunk))))


class ChunkPooling(nn.Module):
    """One vector for each document: the mean of its chunks, or what a small network makes of them."""

    def __init__(self, pooling: Pooling, width: int, num_heads: int) -> None:
        super().__init__()
        self.kind: Pooling = pooling
        match pooling:
            case "mean":
                self.network = nn.Identity()
            case "cnn":
                self.network = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)
            case "lstm":
                self.network = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
            case "attention":
                self.network = nn.TransformerEncoderLayer(
                    width, num_heads, 4 * width, DROPOUT, nn.functional.gelu, batch_first=True
                )
            case _:
                assert_never(pooling)

    def forward(
        self, chunks: Float[Tensor, "documents chunks width"], is_chunk: Bool[Tensor, "documents chunks"]
    ) -> Float[Tensor, "documents width"]:
        """Returns the vector of each document; other chunks than its own do not change it."""
        match self.kind:
            case "cnn":
                seen = nn.functional.relu(self.network(chunks.transpose(1, 2))).transpose(1, 2)
                return seen.masked_fill(~is_chunk[..., None], -torch.inf).amax(1)
            case "lstm":
                lengths = is_chunk.sum(1).cpu()
                packed = pack_padded_sequence(chunks.float(), lengths, batch_first=True, enforce_sorted=False)
                with torch.autocast(chunks.device.type, enabled=False):  # a CPU may have no LSTM in half precision
                    last: Tensor = self.network(packed)[1][0]  # (directions, documents, width / 2)
                return torch.cat([*last], dim=-1)
            case "mean" | "attention":
                if self.kind == "attention":
                    chunks = self.network(chunks, src_key_padding_mask=~is_chunk)
                return chunks.masked_fill(~is_chunk[..., None], 0).sum(1) / is_chunk.sum(1, keepdim=True)
            case _:
                assert_never(self.kind)


def freeze_encoder(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    """Freezes the encoder, which from then on computes the first token of each input once, and only that.

    Its pooler is a part of the head. A head that reads more than first tokens gets all of them, computed anew each
    time; `inputs` are those on which it is tried. Checkpoints hold the head alone.
    """
    encoder: Any = model.base_model.requires_grad_(False)
    set_dropout(encoder, 0.0)
    if (pooler := getattr(encoder, "pooler", None)) is not None:
        pooler.requires_grad_(True)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    model._keys_to_ignore_on_save = frozen  # noqa: SLF001 - transformers has no other name for it
    expected, forward = _logits(model.eval(), inputs), encoder.forward
    encoder.forward = _Remembered(encoder)
    try:
        found = _logits(model, inputs)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        found = expected.new_empty(0)
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=MAX_ROUNDING, atol=MAX_ROUNDING):
        encoder.forward = forward


class _Remembered:
    """The forward pass of a frozen encoder, with the first token's state of each input that was computed before."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.compute = encoder, encoder.forward
        self.known: dict[bytes, Tensor] = {}

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        rows = zip(input_ids.cpu(), attention_mask.bool().cpu(), strict=True)
        keys = [hashlib.sha256(row[is_token].numpy().tobytes()).digest() for row, is_token in rows]
        new = [number for number, key in enumerate(keys) if key not in self.known]
        for first in range(0, len(new), ROWS):
            part = new[first : first + ROWS]
            with torch.no_grad():
                states = self.compute(input_ids[part], attention_mask=attention_mask[part]).last_hidden_state
            self.known |= zip((keys[number] for number in part), states[:, 0].float().cpu(), strict=True)
        states = torch.stack([self.known[key] for key in keys])[:, None].to(input_ids.device)
        pooled, activation = getattr(self.encoder, "pooler", None), getattr(self.encoder, "pooler_activation", None)
        if pooled is not None:  # ALBERT's pooler is a linear layer
            pooled = activation(pooled(states[:, 0])) if activation else pooled(states)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)


@torch.no_grad()
def _logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits
