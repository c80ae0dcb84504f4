"""The optimizer: what it keeps for each parameter, how it skips a step, and the learning rate of each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, assert_never, cast

import torch
from torch import Tensor, nn

from longmlm.artifacts.run import Continuation
from longmlm.errors import TrainingError
from longmlm.settings.pretrain import PretrainRecipe

FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW with the recipe's constants. It decays matrices only: vectors are biases and LayerNorm parameters.

    No other module depends on it being AdamW. `STATES` are the tensors that it keeps for a parameter, all in fp32 and
    of the parameter's size.
    """

    STATES: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    NEVER_NEGATIVE: ClassVar[tuple[str, ...]] = ("exp_avg_sq",)

    torch_optimizer: torch.optim.AdamW

    @classmethod
    def of(cls, model: nn.Module, recipe: PretrainRecipe) -> Self:
        """Returns a new optimizer of the parameters that are trained."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
        betas = (recipe.adam_beta1, recipe.adam_beta2)
        adamw = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.adam_epsilon, fused=True)
        return cls(adamw)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters in the order of its state dict."""
        return tuple(parameter for group in self.torch_optimizer.param_groups for parameter in group["params"])

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients, which the first backward pass allocates."""
        return FP32_BYTES * sum(parameter.numel() for parameter in self.parameters)

    @property
    def state_bytes(self) -> int:
        """Bytes of its state, which the first update allocates."""
        return len(self.STATES) * self.gradient_bytes

    def update(self, rate: float, norm: Tensor) -> None:
        """Updates the parameters unless `norm`, the gradients', is not finite: on the device, so nothing waits for it.

        The fused AdamW itself skips an update whose `found_inf` is 1, as `check_skips` makes sure.
        """
        for group in self.torch_optimizer.param_groups:
            group["lr"] = rate
        cast(Any, self.torch_optimizer).found_inf = norm.isfinite().logical_not().float()
        self.torch_optimizer.step()

    @classmethod
    def check_skips(cls, device: torch.device) -> None:
        """Raises TrainingError if torch's AdamW does not skip an update on this device: it does not document how."""
        weight = nn.Parameter(torch.ones(1, device=device))
        weight.grad = torch.ones_like(weight)
        tried, values = cls(torch.optim.AdamW([weight], lr=0.5, fused=True)), []
        for norm in (1.0, math.inf, math.nan, 1.0):
            tried.update(0.5, torch.tensor(norm, device=device))
            values.append([weight.item(), *(value.item() for value in tried.torch_optimizer.state[weight].values())])
        first, *skipped, last = values
        if skipped != [first, first] or last == first or first[0] == 1:
            raise TrainingError(
                f"the fused AdamW of torch {torch.__version__} does not skip an update whose gradients are not finite "
                f"on {device.type}: install another version of torch"
            )


def learning_rate(step: int, recipe: PretrainRecipe, continuations: Sequence[Continuation] = ()) -> float:
    """Returns the learning rate of update number `step`, counted from 0; that of the last update is still positive.

    Steps that were added to a finished run are counted from the first of them, with `PretrainRecipe.for_added_steps`.
    """
    for added in reversed(continuations):
        if step >= added.from_step:
            return learning_rate(step - added.from_step, recipe.for_added_steps(added.num_steps))
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    left = recipe.num_steps - step
    match recipe.schedule:
        case "linear":
            share = left / (recipe.num_steps - recipe.warmup_steps)
        case "cosine":
            share = 0.5 * (1 - math.cos(math.pi * left / (recipe.num_steps - recipe.warmup_steps)))
        case "constant-then-decay":
            share = min(1.0, left / recipe.decay_steps)
        case _:
            assert_never(recipe.schedule)
    return recipe.learning_rate * share
