"""Generated mode: only the base rows are parameters; each forward pass computes all positions from them."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.artifacts.provenance import Extension
from longmlm.model.architecture import unused_bias
from longmlm.model.position_table import position_table_of
from longmlm.model.positions import hierarchical_table


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
