"""AdamW with the recipe's constants, and the learning rate of each step."""

import math
from typing import assert_never

import torch
from torch import nn

from longmlm.settings.pretrain import PretrainRecipe


def new_optimizer(model: nn.Module, recipe: PretrainRecipe) -> torch.optim.AdamW:
    """Returns AdamW with weight decay on matrices only: vectors are biases and LayerNorm parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = (recipe.adam_beta1, recipe.adam_beta2)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.adam_epsilon, fused=True)


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
