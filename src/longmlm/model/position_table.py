"""Position tables: the one of a model, formulas that extend it, and one that is computed in each forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from longmlm.artifacts.provenance import Extension
from longmlm.errors import PositionsError
from longmlm.model.architecture import architecture_of, unused_bias
from longmlm.model.families import check_has_position_table, check_num_positions, non_learned_positions

LENGTH_KEYS = (  # vLLM takes the smallest of these; llama.cpp and others know some of them
    *("n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_sequence_length", "seq_len", "seq_length"),
    *("model_max_length", "max_target_positions", "max_trained_positions"),
)


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
    weights = torch.cat([reserved, table.to(old.weight)])
    embeddings.position_embeddings = nn.Embedding.from_pretrained(weights, freeze=False, padding_idx=old.padding_idx)
    position_ids = torch.arange(num_rows, device=old.weight.device).unsqueeze(0)
    embeddings.register_buffer("position_ids", position_ids, persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        embeddings.register_buffer("token_type_ids", torch.zeros_like(position_ids), persistent=False)
    model.config.max_position_embeddings = num_rows
    set_lengths(model.config, len(table))


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
    kept = {
        key: with_lengths(value, num_positions) for key, value in content.items() if key != "max_position_embeddings"
    }
    lengths = {key: num_positions for key in (*LENGTH_KEYS, "max_length") if isinstance(kept.get(key), int)}
    return kept | lengths


def extended_table(trained: Float[Tensor, "n width"], extension: Extension) -> Float[Tensor, "positions width"]:
    """Returns the `trained` rows, without reserved ones, extended to `extension.num_positions` rows.

    For fitted and distilled, this is the stretched table, from which the fit starts.

    Example: n = 512 rows p extended hierarchically. Position 1030 = 2 * 512 + 6 has offset 6 in block 2. Its row is

        q[1030] = p[6] + alpha / (1 - alpha) * (p[2] - p[0])

    With alpha = 0.4, that is the trained row of the offset plus 2/3 of the difference between rows 2 and 0. In block 0
    the difference is zero: the first 512 rows stay as they were trained. The last block with a row of its own is 511,
    so 512 * 512 rows are the limit.

    Raises PositionsError unless n < num_positions <= n * n.
    """
    num_positions = extension.num_positions
    check_num_positions(len(trained), num_positions)
    match extension.initialisation:
        case "hierarchical" | "tile":
            return hierarchical_table(trained, num_positions, alpha_of(extension))
        case "fitted" | "distilled":
            return stretched_table(trained, num_positions, extension.smooth_terms)
        case _:
            assert_never(extension.initialisation)


def alpha_of(extension: Extension) -> float:
    """Returns the weight of the block in a hierarchical table; a tile is one in which the block has none."""
    return 0.0 if extension.initialisation == "tile" else extension.alpha


def hierarchical_table(
    trained: Float[Tensor, "n width"], num_positions: int, alpha: float
) -> Float[Tensor, "positions width"]:
    """Returns the hierarchical decomposition of `trained`, whose n rows come first, unchanged.

    q[i*n + j] = p[j] + alpha / (1 - alpha) * (p[i] - p[0]), Su (2020), in closed form. alpha = 0 repeats `trained`.
    """
    p, positions = trained.double(), torch.arange(len(trained), num_positions)
    new = p[positions % len(p)] + alpha / (1 - alpha) * (p[positions // len(p)] - p[0])
    return torch.cat([trained[:num_positions], new.to(trained.dtype)])


def stretched_table(
    trained: Float[Tensor, "n width"], num_positions: int, smooth_terms: int
) -> Float[Tensor, "positions width"]:
    """Returns a table in which the smooth part of `trained` is stretched and the rest repeated; row 0 stays unchanged.

    The fit of positions starts from this table.

    Example: 512 rows p extended to 1536 with smooth_terms = 4. The smooth part s of p is its projection on the cosines
    of 0, 1, 2 and 3 half waves over the 512 positions, and has values between them too. Row 1030 = 2 * 512 + 6 has the
    rest of row 6 and the smooth part from two thirds of the way:

        q[1030] = p[6] - s(6) + s(343)        where 343 = (1030 + 1/2) * 512 / 1536 - 1/2

    Row 0 belongs to [CLS] and is unlike the others: the computation uses row 1 in its place.

    Raises PositionsError for more cosines than trained rows.
    """
    n = len(trained)
    if smooth_terms > n:
        raise PositionsError(f"smooth_terms = {smooth_terms}: {n} trained positions have {n} at most")
    p = torch.cat([trained[1:2], trained[1:]]).double()
    short, long = _cosines(n, smooth_terms), _cosines(num_positions, smooth_terms)
    coefficients = short.T @ p / short.square().sum(0).unsqueeze(1)
    mean, rest = coefficients[0], p - short @ coefficients
    deviation = rest[torch.arange(num_positions) % n] + long @ coefficients - mean
    new = mean + deviation[1:]
    return torch.cat([trained[:1], new.to(trained.dtype)])


def _cosines(num_positions: int, num_terms: int) -> Float[Tensor, "positions terms"]:
    """Returns cosines of 0, 1, 2 ... half waves over the positions, the basis of the DCT-II; they are orthogonal."""
    middles = (torch.arange(num_positions, dtype=torch.float64) + 0.5) / num_positions
    return (torch.pi * middles.unsqueeze(1) * torch.arange(num_terms)).cos()


def sinusoidal_table(num_positions: int, width: int, deviation: float) -> Float[Tensor, "positions width"]:
    """Returns sines and cosines of geometric wavelengths (Vaswani et al. 2017, 3.5) with a given standard deviation.

    An untrained model starts with them: their dot products depend on distances only, which need not be learned then.
    """
    wavelengths = 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1) / wavelengths
    table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]
    return (deviation * 2**0.5 * table).float()


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
    rows, num_positions = table.rows.weight[: table.offset + extension.base_positions], len(table.usable_rows)
    table.embeddings.position_embeddings = GeneratedPositions(rows, table.offset, num_positions, alpha_of(extension))


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
