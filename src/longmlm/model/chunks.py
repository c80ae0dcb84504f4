"""Classification of documents that are read in chunks: the chunks' vectors are pooled into one per document.

A chunk's vector is the last hidden state of its first token. Three documents of 1, 2 and 1 chunks are pooled as

    vectors 0 1 2 3, owners 0 1 1 2     ->     0 -     is_chunk  1 0     ->     one vector per document
                                               1 2               1 1
                                               3 -               1 0
"""

from typing import Any, assert_never, cast, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from longmlm.settings.downstream import Pooling

KERNEL = 3  # chunks that the CNN sees together
DROPOUT = 0.1  # before the classifier, and in the attention over chunks


class ChunkClassifier(PreTrainedModel):
    """An encoder, and what makes logits of its chunk vectors.

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

    def forward(
        self, vectors: Float[Tensor, "chunks width"], owners: Int64[Tensor, " chunks"]
    ) -> Float[Tensor, "documents labels"]:
        """Returns the logits of each document, `owners` having the document of each chunk, in order."""
        counts = torch.bincount(owners)
        is_chunk = torch.arange(int(counts.max()), device=owners.device) < counts[:, None]
        chunks = vectors.new_zeros(*is_chunk.shape, vectors.shape[1])
        chunks[is_chunk] = vectors
        return self.classifier(self.dropout(self.pooling(chunks, is_chunk)))


class ChunkPooling(nn.Module):
    """One vector for each document: the mean or maximum of its chunks, or what a small network makes of them."""

    def __init__(self, pooling: Pooling, width: int, num_heads: int) -> None:
        super().__init__()
        assert pooling in get_args(Pooling)
        self.kind: Pooling = pooling
        match pooling:
            case "mean" | "max":
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
            case "mean":
                return _mean(chunks, is_chunk)
            case "max":
                return _maximum(chunks, is_chunk)
            case "cnn":
                return _maximum(nn.functional.relu(self.network(chunks.transpose(1, 2))).transpose(1, 2), is_chunk)
            case "lstm":
                lengths = is_chunk.sum(1).cpu()
                packed = pack_padded_sequence(chunks, lengths, batch_first=True, enforce_sorted=False)
                last: Tensor = self.network(packed)[1][0]  # (directions, documents, width / 2)
                return torch.cat([*last], dim=-1)
            case "attention":
                return _mean(self.network(chunks, src_key_padding_mask=~is_chunk), is_chunk)
            case _:
                assert_never(self.kind)


def without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Returns the encoder without its pooler, if it has one, since chunk vectors do not pass it."""
    if getattr(encoder, "pooler", None) is not None:
        cast(Any, encoder).pooler = None
    return encoder


def _mean(chunks: Tensor, is_chunk: Tensor) -> Tensor:
    return chunks.masked_fill(~is_chunk[..., None], 0).sum(1) / is_chunk.sum(1, keepdim=True)


def _maximum(chunks: Tensor, is_chunk: Tensor) -> Tensor:
    return chunks.masked_fill(~is_chunk[..., None], -torch.inf).amax(1)
