"""Attention between positions: where the first layers' heads would look if all tokens were alike.

The kernel of a head is K(i, j) = f(p_i) W_q W_k f(p_j) / sqrt(head width): the part of its attention logits that
depends on the two positions alone. f divides a row, without its mean, by the standard deviation of a typical embedding,
as the embedding's LayerNorm does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.model.architecture import attention_inputs
from longmlm.model.position_table import position_table_of

NUM_WORDS = 4096


@dataclass(frozen=True, slots=True)
class PositionAttention:
    """The projections of rows of a position table to queries and keys, (heads, table width, head width) per layer."""

    queries: tuple[Float[Tensor, "heads width head_width"], ...]
    keys: tuple[Float[Tensor, "heads width head_width"], ...]

    @classmethod
    def of(cls, model: PreTrainedModel, num_layers: int) -> Self:
        """Returns the projections of the first layers, with LayerNorm and scale folded in."""
        inputs, table = attention_inputs(model), position_table_of(model)
        rows, words = _plain(table.usable_rows), _plain(cast(Any, table.embeddings).word_embeddings.weight)
        sample = words[:: max(1, len(words) // NUM_WORDS)]
        deviation = (sample + rows[torch.arange(len(sample)) % len(rows)]).std(-1).mean()
        width = rows.shape[1]
        centred = (torch.eye(width) - 1 / width) * _plain(inputs.norm.weight) / deviation
        entry = centred if inputs.projection is None else centred @ _plain(inputs.projection.weight).T
        projections = [
            tuple(_heads(entry @ _plain(linear.weight).T, inputs.num_heads) for linear in pair)
            for pair in inputs.attentions[:num_layers]
        ]
        queries, keys = zip(*projections, strict=True)
        return cls(tuple(query / math.sqrt(query.shape[-1]) for query in queries), keys)

    def kernels(
        self, queries: Float[Tensor, "queries width"], keys: Float[Tensor, "keys width"]
    ) -> Iterator[Float[Tensor, "heads queries keys"]]:
        """Yields the kernels of a layer's heads between rows of a table, for each layer."""
        for to_query, to_key in zip(self.queries, self.keys, strict=True):
            yield (queries @ to_query) @ (keys @ to_key).transpose(1, 2)


def _plain(weight: Tensor) -> Tensor:
    """Returns a weight of any precision and device in fp32 on the CPU, without its gradient."""
    return weight.detach().float().cpu()


def _heads(projection: Float[Tensor, "width hidden"], num_heads: int) -> Float[Tensor, "heads width head_width"]:
    return projection.unflatten(1, (num_heads, -1)).transpose(0, 1)
