"""The learned position table of a model: find it, or replace it."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.architecture import architecture_of
from longmlm.model.families import check_has_position_table, non_learned_positions
from longmlm.model.lengths import set_lengths


@dataclass(frozen=True, slots=True)
class PositionTable:
    """A model's embeddings, their position table, and its offset: the number of reserved rows before position 0."""

    embeddings: nn.Module
    rows: nn.Embedding
    offset: int

    @property
    def usable_rows(self) -> Tensor:
        """The rows that positions use, without their gradient."""
        return self.rows.weight.detach()[self.offset :]


def position_table_of(model: PreTrainedModel, name: str | None = None) -> PositionTable:
    """Returns the position table; raises ModelError, with the reason, for a model that has no learned one."""
    parts = architecture_of(model)
    check_has_position_table(model.config, parts.num_positions, name or model.name_or_path or type(model).__name__)
    embeddings = cast(nn.Module, parts.encoder.embeddings)
    return PositionTable(embeddings, cast(nn.Embedding, embeddings.position_embeddings), parts.position_offset)


def has_position_table(model: PreTrainedModel) -> bool:
    """Returns whether the model has a learned position table, which can be extended."""
    return non_learned_positions(model.config) is None


@torch.no_grad()
def replace_positions(model: PreTrainedModel, table: Tensor) -> None:
    """Replaces the usable rows of the position table with `table` (positions, width); reserved rows are kept.

    The buffers that are as long as the table are resized, and the config's lengths are set.
    """
    positions = position_table_of(model)
    old, embeddings = positions.rows, positions.embeddings
    reserved = old.weight[: positions.offset]
    num_rows = len(table) + positions.offset
    new = nn.Embedding(num_rows, old.embedding_dim, padding_idx=old.padding_idx, device=old.weight.device)
    new.weight.copy_(torch.cat([reserved, table.to(old.weight)]))
    embeddings.position_embeddings = new.to(old.weight.dtype)
    position_ids = torch.arange(num_rows, device=old.weight.device).unsqueeze(0)
    embeddings.register_buffer("position_ids", position_ids, persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        embeddings.register_buffer("token_type_ids", torch.zeros_like(position_ids), persistent=False)
    model.config.max_position_embeddings = num_rows
    set_lengths(model.config, len(table))
