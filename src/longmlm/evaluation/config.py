"""What is measured on held-out rows: the settings of the evaluate stage and of evaluation in training."""

from dataclasses import dataclass, field
from typing import Literal

from longmlm.data.config import Masking


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out rows, and the one mask that each of them keeps."""

    __pydantic_config__ = {"extra": "forbid"}

    max_rows: int | None = None
    """Rows to evaluate, spread evenly over the held-out side; absent for all of them."""
    mask_seed: int = 1789
    """Seed of the frozen masks."""
    rows_per_batch: int = 16
    """Rows in one forward pass."""
    masking: Masking = field(default_factory=Masking)
    """The shares of the frozen masks."""

    def __post_init__(self) -> None:
        if self.rows_per_batch < 1 or (self.max_rows is not None and self.max_rows < 1):
            raise ValueError("rows_per_batch and max_rows must be at least 1")
        if not 0 <= self.mask_seed < 2**63:
            raise ValueError("mask_seed must be at least 0 and below 2 ** 63")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Models and held-out rows to accuracies, whole and per block of positions, a picture and a page."""

    __pydantic_config__ = {"extra": "forbid"}

    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] of the hub; their held-out side is read."""
    output: str
    """Folder for evaluation.json, the pictures and index.html; an earlier result there is replaced."""
    base: str
    """The base model, at its own length."""
    long_before: str
    """The long model as it was extended."""
    long_after: str | None = None
    """The long model after training: an export, a checkpoint, or a run folder, whose best checkpoint is taken."""
    run: str | None = None
    """Run folder whose metrics give the recovery curve."""
    precision: Literal["auto", "no", "bf16"] = "no"
    """Autocast: no (fp32), bf16, or auto for bf16 where the hardware has it."""
    held_out: HeldOut = field(default_factory=HeldOut)
    """The frozen masks."""
