"""One optimizer update from a global batch.

The loss of a target, such as mlm, is the sum over its predictions in the global batch, divided by their number,
whatever the micro-batches and ranks; an update lowers the sum over the targets. Two ranks with two micro-batches each;
predictions and loss sums of one target:

    rank 0   3 tokens, loss 6.0   |   1 token,  loss 4.0
    rank 1   2 tokens, loss 5.0   |   2 tokens, loss 1.0

The loss is (6 + 4 + 5 + 1) / (3 + 1 + 2 + 2) = 2.0 nats. The mean of the four micro-batches' means would be
(2.0 + 4.0 + 2.5 + 0.5) / 4 = 2.25: it would weigh the single token of the second micro-batch as much as the three of
the first. Data parallelism averages gradients over the ranks, so each backward pass scales its sum by 2 ranks / 8.

The host waits for the device once per step, after the update has been queued: it then reads counts, sums and gradient
norm together. Until then they stay on the device, which also decides whether the update is made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from longmlm.artifacts.metrics import TargetMetrics
from longmlm.artifacts.run import TrainState
from longmlm.batches.collate import MlmBatch, Target
from longmlm.errors import RESUMES_FROM_CHECKPOINT, TrainingError
from longmlm.folders import write_json
from longmlm.model.mlm import LossSum
from longmlm.runtime.watchdog import heartbeat
from longmlm.training.micro_batch import unrepeatable_update
from longmlm.training.optimizer import learning_rate
from longmlm.training.run import Run, Task

MAX_SKIPPED_IN_A_ROW = 30  # 30 halvings take the loss scale from 65,536 to 0.00006: the scale is not the cause


class TargetFigures(NamedTuple):
    """Mean loss in nats, accuracy in percent, and the number of predictions that they are of."""

    loss: float
    accuracy: float
    count: int


@dataclass(frozen=True, slots=True)
class Update:
    """One update over all ranks: loss and accuracy by target, gradient norm before clipping.

    `num_tokens` counts tokens without padding, `num_with_padding` with padding.

    An update is skipped, and changes no weight, when its loss or norm is not finite, as happens in fp16.
    """

    targets: dict[Target, TargetFigures]
    num_tokens: int
    num_with_padding: int
    gradient_norm: float
    learning_rate: float

    @property
    def loss(self) -> float:
        """The sum of the targets' losses."""
        return sum(figures.loss for figures in self.targets.values())

    @property
    def is_skipped(self) -> bool:
        """Whether no weight was changed."""
        return not math.isfinite(self.gradient_norm)

    def progress_text(self, seconds: float) -> str:
        """Returns loss, accuracy and speed of an update that took `seconds`, in few characters."""
        names = {target: "loss" if len(self.targets) == 1 else target for target in self.targets}
        shown = [f"{names[target]} {one.loss:.2f} {one.accuracy:.0f} %" for target, one in self.targets.items()]
        figures = ["skipped"] if self.is_skipped else shown
        return ", ".join([*figures, f"{self.num_tokens / seconds:,.0f} tok/s"])


def mean_of(figures: Sequence[TargetFigures]) -> TargetMetrics:
    """Returns the means over the predictions of several updates."""
    count = sum(one.count for one in figures)
    loss, accuracy = (sum(getattr(one, key) * one.count for one in figures) for key in ("loss", "accuracy"))
    return TargetMetrics(loss / count, accuracy / count)


def one_update(task: Task, run: Run, batches: Sequence[MlmBatch], state: TrainState) -> Update:
    """Makes one update with this rank's micro-batches of a global batch.

    Raises TrainingError when the loss or a gradient is not finite on any rank; the update is not made then. In fp16,
    the loss scale is lowered instead, and the error comes after MAX_SKIPPED_IN_A_ROW such updates in a row.
    """
    accelerator, backend, targets = run.accelerator, run.backend, tuple(batches[0].num_targets)
    own = [[*batch.num_targets.values(), batch.num_tokens, batch.num_with_padding] for batch in batches]
    own_counts = torch.tensor(own, dtype=torch.float64).sum(0)
    counts = accelerator.reduce(own_counts.to(accelerator.device, non_blocking=True), "sum")
    of_targets = (accelerator.num_processes / counts[: len(targets)].clamp(min=1)).float()  # there may be no pairs
    weights = dict(zip(targets, of_targets, strict=True))
    sums = torch.zeros(len(targets), 2, dtype=torch.float64, device=accelerator.device)
    for number, batch in enumerate(batches, 1):
        heartbeat()
        with backend.accumulation(is_last=number == len(batches)):
            output = backend.forward(batch.to(accelerator.device))
            pairs = [torch.stack([loss.detach().double(), correct.double()]) for loss, correct in output.values()]
            sums += torch.stack(pairs)
            backend.backward(_weighted(output, weights))
    rate = learning_rate(state.step, task.recipe, task.record.continuations)
    with unrepeatable_update(state.step + 1):
        norm = backend.step(rate)
    read = torch.cat([counts, accelerator.reduce(sums, "sum").flatten(), norm.double().view(1)]).tolist()
    *sizes, num_tokens, num_with_padding = map(int, read[: len(counts)])
    *totals, norm = read[len(counts) :]
    if not sizes[targets.index("mlm")]:
        raise TrainingError(
            f"the rows of step {state.step + 1} have no token to predict: the tokenizer does not know the text's script"
        )
    if not all(map(math.isfinite, (*totals, norm))):
        _check_skipped(task, run, batches, state)
        norm = math.nan
    by_target = zip(targets, sizes, totals[::2], totals[1::2], strict=True)
    figures = {
        name: TargetFigures(loss / max(1, size), 100 * correct / max(1, size), size)
        for name, size, loss, correct in by_target
    }
    return Update(figures, num_tokens, num_with_padding, norm, rate)


def _weighted(output: Mapping[Target, LossSum], weights: Mapping[Target, Tensor]) -> Tensor:
    """Returns the sum of the weighted losses; nan if one of them is not finite, so that no rank makes the update."""
    weighted = [
        loss * torch.where(loss.detach().isfinite(), weights[target], math.nan) for target, (loss, _) in output.items()
    ]
    return sum(weighted[1:], weighted[0])


def _check_skipped(task: Task, run: Run, batches: Sequence[MlmBatch], state: TrainState) -> None:
    """Raises TrainingError for a skipped update, in fp16 only after MAX_SKIPPED_IN_A_ROW of them in a row."""
    skipped, reason = state.skipped_in_a_row + 1, ""
    if task.record.trained_on.precision == "fp16":
        if skipped < MAX_SKIPPED_IN_A_ROW:
            return
        reason = f", as in the {skipped - 1} skipped updates before it"
    name = f"non-finite-step-{state.step + 1:08d}-process-{run.accelerator.process_index}.json"
    row_ids = [row_id for batch in batches for row_id in batch.row_ids]
    write_json(run.folder / name, {"step": state.step + 1, "row_ids": row_ids})
    raise TrainingError(
        f"loss or gradient is not finite in step {state.step + 1}{reason}; no update was made, its rows are listed in "
        f"{run.folder / name}: lower the learning rate or inspect these rows; {RESUMES_FROM_CHECKPOINT}"
    )
