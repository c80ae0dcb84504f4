"""Models of arms: encoders with transformers' own heads, or a head over chunks whose vectors are pooled into one.

A chunk's vector is the last hidden state of its first token. Three documents of 1, 2 and 1 chunks are pooled as

    vectors 0 1 2 3, owners 0 1 1 2     ->     0 -     is_chunk  1 0     ->     one vector per document
                                               1 2               1 1
                                               3 -               1 0
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, assert_never, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from longmlm.downstream.documents import LabelledCorpus
from longmlm.downstream.reading import bio_labels
from longmlm.downstream.settings import Arm, Pooling, TaskKind
from longmlm.model.architecture import without_pooler
from longmlm.model.loading import LoadedModel, load_model

KERNEL = 3  # chunks that the CNN sees together
DROPOUT = 0.1  # before the classifier, and in the attention over chunks
PROBLEM_TYPES = {False: "single_label_classification", True: "multi_label_classification"}  # transformers' names


def load_arm_model(arm: Arm, kind: TaskKind, corpus: LabelledCorpus, seed: int) -> LoadedModel:
    """Returns the arm's model with a new head, initialised with `seed`; raises ModelError as load_model does."""
    names = bio_labels(corpus.labels) if kind == "labelling" else corpus.labels
    values: dict[str, object] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    load = partial(load_model, str(arm.model), arm.revision, new_head=True, seed=seed)
    if kind == "labelling":
        return load(auto_class=AutoModelForTokenClassification, config_values=values)
    values["problem_type"] = PROBLEM_TYPES[corpus.is_multilabel]
    if arm.reads != "chunks":
        return load(auto_class=AutoModelForSequenceClassification, config_values=values)
    loaded = load(auto_class=AutoModel)
    torch.manual_seed(seed)
    return replace(loaded, model=ChunkClassifier.around(loaded.model, chunk_pooling=arm.pooling, **values))


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
        assert pooling in get_args(Pooling)
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
            case "mean":
                return _mean(chunks, is_chunk)
            case "cnn":
                seen = nn.functional.relu(self.network(chunks.transpose(1, 2))).transpose(1, 2)
                return seen.masked_fill(~is_chunk[..., None], -torch.inf).amax(1)
            case "lstm":
                lengths = is_chunk.sum(1).cpu()
                packed = pack_padded_sequence(chunks, lengths, batch_first=True, enforce_sorted=False)
                last: Tensor = self.network(packed)[1][0]  # (directions, documents, width / 2)
                return torch.cat([*last], dim=-1)
            case "attention":
                return _mean(self.network(chunks, src_key_padding_mask=~is_chunk), is_chunk)
            case _:
                assert_never(self.kind)


class FirstTokens(nn.Module):
    """Stands in for a frozen encoder: its inputs are the encoder's last hidden states at the first tokens.

    It has the encoder's pooler, which is a part of the head.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.pooler = getattr(encoder, "pooler", None)
        self.pooler_activation = getattr(encoder, "pooler_activation", None)  # ALBERT's pooler is a linear layer

    def forward(
        self, input_ids: None = None, inputs_embeds: Tensor | None = None, **_: Any
    ) -> BaseModelOutputWithPooling:
        """Returns the hidden states as they are, and pooled if the encoder pools."""
        assert input_ids is None and inputs_embeds is not None  # noqa: PT018
        pooled = None
        if self.pooler is not None and self.pooler_activation is not None:
            pooled = self.pooler_activation(self.pooler(inputs_embeds[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(inputs_embeds)
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


@contextmanager
def encoder_in_place(model: PreTrainedModel, encoder: PreTrainedModel) -> Iterator[None]:
    """Puts a frozen encoder back into the model in the block, for a forward pass on tokens and to save the model."""
    stand_in = model.base_model
    setattr(model, model.base_model_prefix, encoder)
    try:
        yield
    finally:
        setattr(model, model.base_model_prefix, stand_in)


def _mean(chunks: Tensor, is_chunk: Tensor) -> Tensor:
    return chunks.masked_fill(~is_chunk[..., None], 0).sum(1) / is_chunk.sum(1, keepdim=True)
