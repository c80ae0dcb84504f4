"""Settings of the evaluate stage: the models, the held-out rows, and how accuracy is measured."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from longmlm.settings.masking import HeldOut
from longmlm.settings.pretrain import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRecipe:
    """What is measured; changing it makes a different evaluation."""

    held_out: HeldOut = field(default_factory=HeldOut)
    precision: Precision = "no"
    """Autocast precision: no (fp32), fp16, bf16, or auto (bf16 if the hardware supports it, else no)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRuntime:
    """Speed and memory; the result does not depend on them."""

    rows_per_batch: Annotated[int, Ge(1)] = 16
    """Rows per forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Measures masked-token accuracy on held-out rows, in total and per block of positions, and writes a report."""

    rows: str
    """Folder of packed rows, or hf:OWNER/NAME[@REVISION]; its held-out split is used."""
    output: str
    """Folder for evaluation.json, the figures and index.html; an earlier result in it is replaced."""
    base: str
    """Base model, evaluated at its own length; of a run folder, the best checkpoint is used."""
    long_before: str | None = None
    """Model before training: the output of the extend stage; not needed for a model trained at its own length."""
    long_after: str | None = None
    """Model after training: an export, a checkpoint, or a run folder, whose best checkpoint is used."""
    run: str | None = None
    """Run folder whose metrics are plotted as the recovery curve."""
    recipe: EvaluateRecipe = field(default_factory=EvaluateRecipe)
    runtime: EvaluateRuntime = field(default_factory=EvaluateRuntime)

    def __post_init__(self) -> None:
        if self.long_before is None and self.long_after is None:
            raise ValueError("set long_before, long_after or both")
