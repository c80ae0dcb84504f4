"""Settings of the evaluate stage: the models, the held-out rows, and how accuracy is measured."""

from dataclasses import dataclass, field

from longmlm.settings.held_out import HeldOut
from longmlm.settings.pretrain import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRecipe:
    """What is measured. A change gives another evaluation."""

    __pydantic_config__ = {"extra": "forbid"}

    held_out: HeldOut = field(default_factory=HeldOut)
    """The rows and their frozen masks."""
    precision: Precision = "no"
    """Autocast: no (fp32), bf16, or auto for bf16 if the hardware supports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRuntime:
    """How fast accuracy is measured."""

    __pydantic_config__ = {"extra": "forbid"}

    rows_per_batch: int = 16
    """Rows in one forward pass."""

    def __post_init__(self) -> None:
        if self.rows_per_batch < 1:
            raise ValueError("rows_per_batch must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Measures masked-token accuracy on held-out rows, in total and per block of positions, and writes a report."""

    __pydantic_config__ = {"extra": "forbid"}

    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION] on the hub; the held-out split is read."""
    output: str
    """Folder for evaluation.json, the figures and index.html; an earlier result there is replaced."""
    base: str
    """The base model, at its own length."""
    long_before: str
    """The long model before training: the output of the extend stage."""
    long_after: str | None = None
    """The long model after training: an export, a checkpoint, or a run folder, whose best checkpoint is used."""
    run: str | None = None
    """Run folder whose metrics are plotted as the recovery curve."""
    recipe: EvaluateRecipe = field(default_factory=EvaluateRecipe)
    """What is measured."""
    runtime: EvaluateRuntime = field(default_factory=EvaluateRuntime)
    """How fast accuracy is measured."""
