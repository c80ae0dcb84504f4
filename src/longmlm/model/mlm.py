"""The masked-language-modelling objective: loss and accuracy at the selected positions of a batch."""

from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, Target
from longmlm.model.architecture import layers_of, parts_of
from longmlm.model.encoding import EncoderObjective, LossSum
from longmlm.settings.pretrain import ComputePrecision

MAX_LOGITS = 2**26  # computed at a time, 256 MiB in fp32; the backward pass holds three times as much


class MlmOutput(NamedTuple):
    """Cross-entropy in nats, and whether the likeliest token is correct, at each selected position."""

    losses: Float[Tensor, " selected"]
    is_correct: Bool[Tensor, " selected"]


class MlmObjective(EncoderObjective[MlmBatch]):
    """A masked language model whose head runs at the selected positions only.

    The head computes at most MAX_LOGITS logits at a time: with 50,265 tokens in the vocabulary, those of 1,335
    positions. If a batch has more, it computes them again in the backward pass. Unless it `runs_alone`, it runs once:
    every rank has to call it the same number of times where each call gathers its parameters.
    """

    def __init__(self, model: PreTrainedModel, precision: ComputePrecision = "no") -> None:
        super().__init__(model, precision)
        self.parts, self.runs_alone = parts_of(model), True

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        """Returns the sums over the batch, which a training step adds up over its micro-batches."""
        output = self.predict(batch)
        return {"mlm": LossSum(output.losses.sum(), output.is_correct.sum())}

    def predict(self, batch: MlmBatch) -> MlmOutput:
        """Returns loss and correctness at each selected position, in the batch's order."""
        hidden, size = self.selected_states(batch), max_positions_at_a_time(self.model.config.vocab_size)
        if len(hidden) <= size or not self.runs_alone:
            return self._predict(hidden, batch.labels)
        predict = self._predict
        if torch.is_grad_enabled():
            predict = partial(checkpoint, predict, use_reentrant=False, preserve_rng_state=False)
        parts = [predict(*part) for part in zip(hidden.split(size), batch.labels.split(size), strict=True)]
        return MlmOutput(*map(torch.cat, zip(*parts, strict=True)))

    def _predict(self, hidden: Float[Tensor, "selected width"], labels: Int[Tensor, " selected"]) -> MlmOutput:
        logits = self._logits(hidden)
        return MlmOutput(nn.functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels)

    def logits(self, batch: MlmBatch) -> Float[Tensor, "selected vocabulary"]:
        """Returns the fp32 logits at the selected positions, computed under autocast unless the precision is no."""
        return self._logits(self.selected_states(batch))

    def _logits(self, hidden: Float[Tensor, "selected width"]) -> Float[Tensor, "selected vocabulary"]:
        with self.autocast(hidden):
            return self.parts.head(hidden).float()

    def selected_states(self, batch: MlmBatch) -> Float[Tensor, "selected width"]:
        """Returns the last hidden states at the selected positions."""
        with self.autocast(batch.input_ids):
            return self.hidden_states(batch).flatten(0, 1).index_select(0, batch.selected)


def max_positions_at_a_time(vocab_size: int) -> int:
    """Returns at how many positions logits are computed at a time: MAX_LOGITS // vocab_size, and at least one."""
    return max(1, MAX_LOGITS // vocab_size)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Makes each layer keep only its input and recompute the rest in the backward pass (Chen et al. 2016)."""
    for layer in layers_of(cast(PreTrainedModel, model.base_model)):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
