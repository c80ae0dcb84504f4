"""Settings of the extend stage: how a model gets more positions."""

from dataclasses import dataclass
from typing import Literal

Initialisation = Literal["hierarchical", "tile", "random", "interpolate"]
PositionMode = Literal["materialized", "generated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRecipe:
    """What the long model is. A change gives another model."""

    __pydantic_config__ = {"extra": "forbid"}

    num_positions: int
    """Usable positions of the long model: special tokens included, reserved rows not counted."""
    initialisation: Initialisation = "hierarchical"
    """How the new rows of the position table are computed; only interpolate changes the trained rows."""
    alpha: float = 0.4
    """Weight of the higher digit in the hierarchical decomposition."""
    mode: PositionMode = "materialized"
    """materialized: every row is trained; generated: the base rows are, and the others are computed from them."""
    seed: int = 0
    """Seed of random rows and of a new head."""
    new_head: bool = False
    """Whether to give a model without an MLM head a new, untrained one."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1 or self.alpha == 0.5:
            raise ValueError("alpha must be at least 0, below 1 and not 0.5, which makes rows (i, j) and (j, i) equal")
        if self.mode == "generated" and self.initialisation not in ("hierarchical", "tile"):
            raise ValueError("mode = generated needs rows that are computed from the base rows: hierarchical or tile")
        if not 0 <= self.seed < 2**63:
            raise ValueError("seed must be at least 0 and below 2 ** 63")
        if self.num_positions < 1:
            raise ValueError("num_positions must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendConfig:
    """Extends a checkpoint to more positions; the trained rows of its position table stay as they are."""

    __pydantic_config__ = {"extra": "forbid"}

    base: str
    """Folder or hub name of the pretrained model."""
    output: str
    """Folder of the long checkpoint to write."""
    recipe: ExtendRecipe
    """What the long model is."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
