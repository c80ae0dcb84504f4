"""A batch to loss and hits on its selected positions."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch
from longmlm.model.architecture import architecture_of


class MlmOutput(NamedTuple):
    """Cross-entropy in nats and whether the likeliest token was right, for each selected position."""

    losses: Float[Tensor, " selected"]
    hits: Bool[Tensor, " selected"]


class MlmObjective(nn.Module):
    """A masked language model that projects the selected positions only; its parameters are fp32 with bf16 too."""

    def __init__(self, model: PreTrainedModel, is_bf16: bool = False) -> None:
        super().__init__()
        self.model = model
        self.is_bf16 = is_bf16

    def forward(self, batch: MlmBatch) -> MlmOutput:
        """Returns loss and hit for each selected position, in the batch's order."""
        logits = self.logits(batch)
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        return MlmOutput(losses, logits.argmax(-1) == batch.labels)

    def logits(self, batch: MlmBatch) -> Float[Tensor, "selected vocabulary"]:
        """Returns the fp32 logits at the selected positions, computed under autocast where this is bf16."""
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=self.is_bf16):
            return selected_logits(self.model, batch).float()


def selected_logits(model: PreTrainedModel, batch: MlmBatch) -> Float[Tensor, "selected vocabulary"]:
    """Returns the logits at the selected positions; the head runs on them alone."""
    parts = architecture_of(model)
    hidden = parts.encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    return parts.head(hidden.flatten(0, 1).index_select(0, batch.selected))


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Lets each layer keep its input alone and compute the rest again in the backward pass (Chen et al. 2016)."""
    for layer in cast(nn.ModuleList, architecture_of(model).layers):
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def set_dropout(model: nn.Module, probability: float) -> None:
    """Sets every dropout of the model, attention included; the model's config keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
