"""A run in two halves: what is learned, and what executes it."""

from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator

from longmlm.model.cost import Cost
from longmlm.settings.pretrain import PretrainRecipe, PretrainRuntime
from longmlm.training.backend import Backend
from longmlm.training.checkpoint import RunRecord
from longmlm.training.objective import Batches, Evaluation


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned and how it is measured, whatever machines execute it."""

    batches: Batches
    evaluation: Evaluation
    record: RunRecord

    @property
    def recipe(self) -> PretrainRecipe:
        """The recipe, which a checkpoint records as well."""
        return self.record.recipe


@dataclass(frozen=True, slots=True)
class Run:
    """What executes a task, and where its results go; `peak_flops` of a device is None where it is not known."""

    folder: Path
    accelerator: Accelerator
    backend: Backend
    runtime: PretrainRuntime
    cost: Cost
    peak_flops: float | None

    @property
    def peak_tokens_per_second(self) -> float | None:
        """The speed at which all devices would compute at their peak, to which MFU is the ratio."""
        if self.peak_flops is None:
            return None
        return self.peak_flops * self.accelerator.num_processes / self.cost.flop_per_token
