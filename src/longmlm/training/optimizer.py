"""AdamW with the recipe's constants, and the learning rate of each step and parameter group."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never, cast

import torch
from torch import Tensor, nn

from longmlm.errors import TrainingError
from longmlm.model.position_table import has_position_table, position_table_of
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.objective import Objective

ParameterGroup = dict[str, Any]  # torch's


class GroupedAdamW(torch.optim.AdamW):
    """AdamW that leaves the parameters and the state of a group as they are while the group's rate is 0."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Updates the groups whose rate is positive."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if group["lr"] > 0]
        try:
            return super().step(closure)
        finally:
            self.param_groups = groups


def new_optimizer(objective: nn.Module, recipe: PretrainRecipe) -> GroupedAdamW:
    """Returns AdamW with weight decay on matrices only: vectors are biases and LayerNorm parameters.

    The position table is the first group if the recipe trains it differently. Raises TrainingError if it does and the
    model has no learned table.
    """
    tables = _tables(cast(Objective, objective), recipe) if _has_table_group(recipe) else []
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    matrices = [one for one in trained if one.ndim > 1 and not any(one is table for table in tables)]
    groups: list[ParameterGroup] = [
        *({"params": [table], "weight_decay": recipe.weight_decay} for table in tables),
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = (recipe.adam_beta1, recipe.adam_beta2)
    optimizer = GroupedAdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.adam_epsilon, fused=True)
    for index, group in enumerate(optimizer.param_groups if recipe.positions_first_steps else ()):
        for parameter in group["params"]:
            parameter.register_hook(partial(_gradient, optimizer, index))
    return optimizer


def _has_table_group(recipe: PretrainRecipe) -> bool:
    return recipe.position_rate != 1 or recipe.positions_first_steps > 0


def _tables(objective: Objective, recipe: PretrainRecipe) -> list[Tensor]:
    if not has_position_table(objective.model):
        name = "positions_first_steps" if recipe.positions_first_steps else "position_rate"
        raise TrainingError(
            f"recipe.{name} is for a model with a learned position table, which {objective.model.config.model_type} "
            "models do not have: remove it"
        )
    return [position_table_of(objective.model).rows.weight]


def _gradient(optimizer: GroupedAdamW, index: int, gradient: Tensor) -> Tensor | None:
    """Returns zeros for a group of rate 0, so that its gradient does not count in the norm; None keeps it."""
    return None if optimizer.param_groups[index]["lr"] > 0 else torch.zeros_like(gradient)


def set_rates(groups: Iterable[ParameterGroup], step: int, recipe: PretrainRecipe) -> None:
    """Sets the learning rate of each group of `new_optimizer` for update number `step`, before its backward passes."""
    for group, rate in zip(groups, group_rates(step, recipe), strict=True):
        group["lr"] = rate


def group_rates(step: int, recipe: PretrainRecipe) -> tuple[float, ...]:
    """Returns the learning rate of each group of `new_optimizer` in update `step`; 0 for one that stays as it is."""
    rate = learning_rate(step, recipe)
    if not _has_table_group(recipe):
        return rate, rate
    others = 0.0 if step < recipe.positions_first_steps else rate
    return recipe.position_rate * rate, others, others


def learning_rate(step: int, recipe: PretrainRecipe) -> float:
    """Returns the learning rate of update number `step`, counted from 0; that of the last update is still positive."""
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


def is_constant(step: int, recipe: PretrainRecipe) -> bool:
    """Returns whether no update before `step` depended on the number of steps, so that it may be changed."""
    return recipe.schedule == "constant-then-decay" and step <= recipe.num_steps - recipe.decay_steps
