"""The learning rate of each step."""

import math
from typing import assert_never

from longmlm.settings.pretrain import PretrainRecipe


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
