"""A transformers model to its parts: the one place that knows where a family keeps what."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from longmlm.errors import ModelError

REFUSED = {
    "deberta": "relative positions",
    "deberta-v2": "relative positions",
    "mpnet": "relative positions",
    "t5": "relative positions",
    "xlnet": "relative positions",
    "nezha": "relative positions",
    "roformer": "rotary positions",
    "modernbert": "rotary positions",
    "nomic_bert": "rotary positions",
    "eurobert": "rotary positions",
    "esm": "rotary or other positions",
    "fnet": "no attention to extend",
    "longformer": "a windowed attention of its own",
    "big_bird": "a windowed attention of its own",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model with learned absolute positions.

    `position_offset` rows at the head of the position table are reserved and belong to no position.
    """

    family: str
    encoder: nn.Module
    embeddings: nn.Module
    head: Callable[[Tensor], Tensor]
    position_offset: int

    @property
    def position_table(self) -> nn.Embedding:
        """The embedding of positions, reserved rows included."""
        return cast(nn.Embedding, self.embeddings.position_embeddings)

    @property
    def num_positions(self) -> int:
        """Positions that a text can use."""
        return self.position_table.num_embeddings - self.position_offset


def refuse_unsuitable(config: PretrainedConfig, name: str) -> None:
    """Raises ModelError, with the reason, for a model whose positions are not a learned absolute table."""
    family = config.model_type
    if family in REFUSED:
        raise ModelError(f"{name} is a {family} model: it has {REFUSED[family]}, and no table of positions to stretch")
    if family not in ("roberta", "bert"):
        raise ModelError(f"{name} is a {family or 'nameless'} model: only roberta and bert models can be stretched")
    if (kind := getattr(config, "position_embedding_type", None) or "absolute") != "absolute":
        raise ModelError(f"{name} has {kind} positions: only learned absolute ones can be stretched")


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Returns the parts of a masked language model; raises ModelError for one that cannot be stretched."""
    refuse_unsuitable(model.config, model.name_or_path or type(model).__name__)
    return _parts(model)


def _parts(model: Any) -> Architecture:
    match model.config.model_type:
        case "roberta":
            encoder, head, offset = model.roberta, model.lm_head, model.roberta.embeddings.padding_idx + 1
        case _:
            encoder, head, offset = model.bert, model.cls, 0
    return Architecture(model.config.model_type, encoder, encoder.embeddings, head, offset)


@torch.no_grad()
def replace_positions(model: PreTrainedModel, table: Tensor) -> None:
    """Puts `table` (positions, width) in the place of the usable rows, and fits all that has the table's length.

    Reserved rows are carried over. The buffers that the embeddings slice or gather by position, and the model's
    config, follow.
    """
    parts = architecture_of(model)
    old = parts.position_table
    reserved = old.weight[: parts.position_offset]
    num_rows = len(table) + parts.position_offset
    new = nn.Embedding(num_rows, old.embedding_dim, padding_idx=old.padding_idx, device=old.weight.device)
    new.weight.copy_(torch.cat([reserved, table.to(old.weight)]))
    new.to(old.weight.dtype)
    embeddings = parts.embeddings
    embeddings.position_embeddings = new
    positions = torch.arange(num_rows, device=old.weight.device).unsqueeze(0)
    embeddings.register_buffer("position_ids", positions, persistent=False)
    embeddings.register_buffer("token_type_ids", torch.zeros_like(positions), persistent=False)
    model.config.max_position_embeddings = num_rows
