"""The protocols of what the training loop is given: batches, an objective to minimise, an evaluation of the model."""

from collections.abc import Callable, Mapping
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.artifacts.run import TrainState
from longmlm.batches.collate import Target

LossSums = Mapping[Target, tuple[Tensor, Tensor]]


@runtime_checkable
class Batch(Protocol):
    """A micro-batch."""

    @property
    def num_targets(self) -> Mapping[Target, int]:
        """Predictions that the loss of each target is summed over."""

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""

    @property
    def num_with_padding(self) -> int:
        """Tokens, padding included."""

    @property
    def row_ids(self) -> tuple[int, ...]:
        """The rows that it consists of."""

    def to(self, device: torch.device) -> Self:
        """Returns the batch on `device`."""


@runtime_checkable
class Batches(Protocol):
    """The global batches of a run: a pure function of the cursor, the number of rows consumed so far."""

    @property
    def num_rows(self) -> int:
        """The number of rows that are drawn from."""

    @property
    def description(self) -> str:
        """The rows that are drawn from, in words."""

    @property
    def rows_per_step(self) -> int:
        """Rows of a global batch."""

    @property
    def rows_per_micro_batch(self) -> int:
        """Rows of a micro-batch, at most."""

    def in_micro_batches_of(self, num_rows: int) -> Self:
        """Returns the same global batches in micro-batches of at most `num_rows` rows."""

    def __getitem__(self, cursor: int, /) -> tuple[Batch, ...]:
        """Returns this rank's micro-batches of the global batch that starts at `cursor`."""


@runtime_checkable
class Objective(Protocol):
    """An nn.Module around the `model` that is trained, saved and exported.

    `has_full_parameters` is true where every rank holds all parameters. Under ZeRO-3 it is false: ranks then gather
    parameters together, so each must run every part of the model equally often.
    """

    model: PreTrainedModel
    has_full_parameters: bool

    def __call__(self, batch: Batch) -> LossSums:
        """Returns for each target the loss summed over the batch, in nats, and the number of correct predictions."""


@runtime_checkable
class Evaluation(Protocol):
    """What a run measures, and what follows from it. All ranks call the methods together.

    `between_rows` is called before each row, equally often on every rank. It may raise to abandon the evaluation.
    """

    @property
    def metric(self) -> str:
        """What `measure` calls accuracy, in words."""

    @property
    def num_rows(self) -> int:
        """Rows that are measured."""

    def baseline(self, between_rows: Callable[[], None]) -> Accuracy | None:
        """Returns the accuracy to recover; None where there is no base model to compare with."""

    def measure(self, between_rows: Callable[[], None]) -> tuple[Measured, tuple[FilledMask, ...]]:
        """Returns the accuracy of the model as it is now, and predictions for a tracker to show."""

    def is_over(self, state: TrainState) -> bool:
        """Returns whether the run ends here, before its last step, because of what was measured so far."""
