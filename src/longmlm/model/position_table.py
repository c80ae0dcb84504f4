"""The learned position table of a model: find it, replace it, or compute it in each forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from longmlm.artifacts.provenance import Extension
from longmlm.model.architecture import architecture_of, unused_bias
from longmlm.model.families import check_has_position_table, non_learned_positions
from longmlm.model.positions import hierarchical_table


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


LENGTH_KEYS = (  # vLLM takes the smallest of these; llama.cpp and others know some of them
    *("n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_sequence_length", "seq_len", "seq_length"),
    *("model_max_length", "max_target_positions", "max_trained_positions"),
)
POSITIONS = "max_position_embeddings"


def set_lengths(config: PretrainedConfig, num_positions: int) -> None:
    """Sets the keys of a config that state a length, except for the number of rows of the position table."""
    for key in LENGTH_KEYS:
        if isinstance(vars(config).get(key), int):
            setattr(config, key, num_positions)


def with_lengths(content: Any, num_positions: int) -> Any:
    """Returns the content of another JSON file with all lengths in it set, at any depth.

    max_position_embeddings, which would replace that of config.json, is left out.
    """
    if isinstance(content, list):
        return [with_lengths(item, num_positions) for item in content]
    if not isinstance(content, dict):
        return content
    kept = {key: with_lengths(value, num_positions) for key, value in content.items() if key != POSITIONS}
    lengths = {key: num_positions for key in (*LENGTH_KEYS, "max_length") if isinstance(kept.get(key), int)}
    return kept | lengths


class GeneratedPositions(nn.Embedding):
    """A position table in which only the reserved and the n base rows are parameters, `weight`."""

    def __init__(self, rows: Float[Tensor, "rows width"], num_reserved: int, num_positions: int, alpha: float) -> None:
        super().__init__(rows.shape[0], rows.shape[1], _weight=rows.detach().clone())
        self.num_reserved, self.alpha = num_reserved, alpha
        self.num_embeddings = num_reserved + num_positions

    def table(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "positions width"]:
        """Returns the reserved rows and all positions computed from `rows`, differentiably."""
        reserved, base = rows[: self.num_reserved], rows[self.num_reserved :]
        return torch.cat([reserved, hierarchical_table(base, self.num_embeddings - self.num_reserved, self.alpha)])

    def forward(self, input: Int[Tensor, "..."]) -> Float[Tensor, "... width"]:  # noqa: A002 (torch's name)
        """Returns the rows at these indices."""
        return nn.functional.embedding(input, self.table(self.weight))


def rebuild_positions(model: PreTrainedModel, extension: Extension | None) -> None:
    """Makes a stock long model that was extended in generated mode compute its positions from its first n rows."""
    if extension is None or extension.mode != "generated":
        return
    table = position_table_of(model)
    alpha = 0.0 if extension.initialisation == "tile" else extension.alpha
    rows, num_positions = table.rows.weight[: table.offset + extension.base_positions], len(table.usable_rows)
    table.embeddings.position_embeddings = GeneratedPositions(rows, table.offset, num_positions, alpha)


def stock_state(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the model's state dict as plain transformers loads it, with a row for every position.

    A second bias of the decoder, which the head does not use, has the values of the first.
    """
    state = dict(weights)
    if names := unused_bias(model):
        state[names[1]] = state[names[0]].clone()
    for name, module in model.named_modules():
        if isinstance(module, GeneratedPositions):
            state[f"{name}.weight"] = module.table(state[f"{name}.weight"]).detach()
    return state
