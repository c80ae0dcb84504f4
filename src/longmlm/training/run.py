"""All that a run works with."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from torch import nn

from longmlm.batches.steps import StepBatches
from longmlm.evaluation.frozen import FrozenRows
from longmlm.model.cost import Cost
from longmlm.model.mlm import MlmObjective
from longmlm.settings.pretrain import PretrainRecipe, PretrainRuntime
from longmlm.training import checkpoint
from longmlm.training.snapshot import Trained


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run works with; `objective` is wrapped for data parallelism, `block` the base model's length.

    `parameters` are the optimizer's in its order.
    """

    folder: Path
    accelerator: Accelerator
    objective: nn.Module
    optimizer: torch.optim.Optimizer
    parameters: tuple[nn.Parameter, ...]
    batches: StepBatches
    held_out: FrozenRows
    block: int
    recipe: PretrainRecipe
    runtime: PretrainRuntime
    record: checkpoint.RunRecord
    cost: Cost
    peak_flops: float | None
    num_examples: int = 0

    @property
    def inner(self) -> MlmObjective:
        """The objective without the wrapping of DDP or DeepSpeed."""
        return cast(MlmObjective, getattr(self.objective, "module", self.objective))

    @property
    def trained(self) -> Trained:
        """What a checkpoint is taken of."""
        return Trained(self.inner.model, self.optimizer, self.parameters, self.accelerator)
