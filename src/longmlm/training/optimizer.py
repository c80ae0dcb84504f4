"""AdamW with the recipe's constants."""

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
