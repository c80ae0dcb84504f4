"""Losses of training steps on the same masks, by longmlm and by transformers' Trainer: both must learn the same.

Without dropout, in bf16, with the same initial weights, optimizer and constant learning rate. Only the order in which
sums are computed differs.
"""

import itertools
import sys
from dataclasses import dataclass
from typing import Any, cast

from paired import in_a_process
from steps import RATE, TOKENIZER, MaskedRows, Shape, own_step, trainer_arguments
from torch.utils.data import SequentialSampler
from transformers import (
    AutoTokenizer,
    DataCollatorForTokenClassification,
    PrinterCallback,
    Trainer,
)

from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import PretrainRecipe

TOLERANCE = 0.001  # relative


class InOrder(Trainer):
    """A Trainer that reads the rows in their order."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(cast(MaskedRows, train_dataset or self.train_dataset))


def own_losses(shape: Shape) -> list[float]:
    """Returns the loss of each step with longmlm."""
    step = own_step(shape, shape.roberta())
    return [step().item() for _ in range(shape.num_steps)]


def trainer_losses(shape: Shape) -> list[float]:
    """Returns the loss of each step with the Trainer."""
    recipe = PretrainRecipe(num_steps=1, batch_tokens=shape.row_length, learning_rate=RATE)
    arguments = trainer_arguments(
        per_device_train_batch_size=shape.num_rows,
        max_steps=shape.num_steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.adam_beta1,
        adam_beta2=recipe.adam_beta2,
        adam_epsilon=recipe.adam_epsilon,
        max_grad_norm=recipe.max_gradient_norm,
        logging_steps=1,
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER)
    maskable = load_vocabulary(TOKENIZER).maskable
    rows = MaskedRows(
        [shape.masked_row(row_id, maskable, Masking()) for row_id in range(shape.num_steps * shape.num_rows)]
    )
    trainer = InOrder(shape.roberta(), arguments, DataCollatorForTokenClassification(tokenizer), rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in itertools.islice(trainer.state.log_history, shape.num_steps)]


@dataclass(frozen=True, slots=True)
class Losses:
    """The loss of each step, and the largest relative difference between the two."""

    ours: list[float]
    peer: list[float]
    largest_difference: float


def losses(shape: Shape) -> Losses:
    """Trains with both, each in a process of its own, and returns the losses; exits with an error if they differ."""
    own, peer = (in_a_process(way, shape) for way in (own_losses, trainer_losses))
    difference = max(abs(ours / theirs - 1) for ours, theirs in zip(own, peer, strict=True))
    print(
        f"loss of the last of {shape.num_steps} steps on the same masks: {own[-1]:.4f} and {peer[-1]:.4f}", flush=True
    )
    if difference > TOLERANCE:
        sys.exit(f"error: losses differ by {difference:.2%}")
    return Losses(own, peer, difference)
