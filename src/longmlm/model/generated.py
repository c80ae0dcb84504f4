"""Base rows to all positions, in each forward pass: the generated mode."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.architecture import architecture_of
from longmlm.model.positions import hierarchical_table


class GeneratedPositions(nn.Embedding):
    """A position table of which only the reserved and the n base rows are parameters, `weight`."""

    def __init__(self, rows: Float[Tensor, "rows width"], num_reserved: int, num_positions: int, alpha: float) -> None:
        super().__init__(rows.shape[0], rows.shape[1], _weight=rows.detach().clone())
        self.num_reserved, self.alpha = num_reserved, alpha
        self.num_embeddings = num_reserved + num_positions

    def table(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "positions width"]:
        """Returns all rows that follow from `rows`, its own `weight` in training, which gradients reach."""
        reserved, base = rows[: self.num_reserved], rows[self.num_reserved :]
        return torch.cat([reserved, hierarchical_table(base, self.num_embeddings - self.num_reserved, self.alpha)])

    def forward(self, input: Int[Tensor, "..."]) -> Float[Tensor, "... width"]:  # noqa: A002 (torch's name)
        """Returns the rows of these places."""
        return nn.functional.embedding(input, self.table(self.weight))


def rebuild_positions(model: PreTrainedModel, provenance: Mapping[str, Any]) -> None:
    """Lets a stock long model whose longmlm.json says `generated` compute its positions from its first n rows."""
    if provenance.get("mode") != "generated":
        return
    parts = architecture_of(model)
    alpha = 0.0 if provenance["initialisation"] == "tile" else provenance["alpha"]
    num_base = parts.position_offset + provenance["base_positions"]
    parts.embeddings.position_embeddings = GeneratedPositions(
        parts.position_table.weight[:num_base], parts.position_offset, parts.num_positions, alpha
    )


def stock_state(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state dict of the model with every position a row: what plain transformers loads."""
    state, table = dict(weights), architecture_of(model).position_table
    if not isinstance(table, GeneratedPositions):
        return state
    name = next(name for name, parameter in model.named_parameters() if parameter is table.weight)
    return {**state, name: table.table(state[name]).detach()}
