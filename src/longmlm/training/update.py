"""One optimizer update from a global batch.

The loss is the sum over all targets of the global batch, divided by their number, whatever the micro-batches and ranks.
Two ranks with two micro-batches each; targets and loss sums:

    rank 0   3 targets, loss 6.0   |   1 target,  loss 4.0
    rank 1   2 targets, loss 5.0   |   2 targets, loss 1.0

The loss is (6 + 4 + 5 + 1) / (3 + 1 + 2 + 2) = 2.0 nats. The mean of the four micro-batches' means would be
(2.0 + 4.0 + 2.5 + 0.5) / 4 = 2.25: it would weigh the single target of the second micro-batch as much as the three of
the first. Data parallelism averages gradients over the ranks, so each backward pass scales its sum by 2 ranks / 8.

The host waits for the device once per step, after the update has been queued: it then reads counts, sums and gradient
norm together. Until then they stay on the device, which also decides whether the update is made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.folders import write_json
from longmlm.runtime.watchdog import heartbeat
from longmlm.training.micro_batch import unrepeatable_update
from longmlm.training.objective import Batch
from longmlm.training.optimizer import learning_rate
from longmlm.training.run import Run, Task

MAX_SKIPPED_IN_A_ROW = 30  # 30 halvings take the loss scale from 65,536 to 0.00006: the scale is not the cause


@dataclass(frozen=True, slots=True)
class Update:
    """One update over all ranks: mean loss in nats, accuracy in percent, gradient norm before clipping.

    `num_tokens` counts tokens without padding, `num_with_padding` with padding.

    An update is skipped, and changes no weight, when its loss or norm is not finite, as happens in fp16.
    """

    loss: float
    accuracy: float
    num_tokens: int
    num_with_padding: int
    num_targets: int
    gradient_norm: float
    learning_rate: float

    @property
    def is_skipped(self) -> bool:
        """Whether no weight was changed."""
        return not math.isfinite(self.gradient_norm)


def one_update(task: Task, run: Run, batches: Sequence[Batch], state: TrainState) -> Update:
    """Makes one update with this rank's micro-batches of a global batch.

    Raises TrainingError when the loss or a gradient is not finite on any rank; the update is not made then. In fp16,
    the loss scale is lowered instead, and the error comes after MAX_SKIPPED_IN_A_ROW such updates in a row.
    """
    accelerator, backend = run.accelerator, run.backend
    own = [[batch.num_targets, batch.num_tokens, batch.num_with_padding] for batch in batches]
    own_counts = torch.tensor(own, dtype=torch.float64).sum(0)
    counts = accelerator.reduce(own_counts.to(accelerator.device, non_blocking=True), "sum")
    weight = (accelerator.num_processes / counts[0]).float()
    sums = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
    for number, batch in enumerate(batches, 1):
        heartbeat()
        with backend.accumulation(is_last=number == len(batches)):
            loss, correct = backend.forward(batch.to(accelerator.device))
            sums += torch.stack([loss.detach().double(), correct.double()])
            backend.backward(loss * torch.where(loss.detach().isfinite(), weight, math.nan))  # nan: no rank updates
    rate = learning_rate(state.step, task.recipe)
    with unrepeatable_update(state.step + 1):
        norm = backend.step(rate)
    figures = torch.cat([counts, accelerator.reduce(sums, "sum"), norm.double().view(1)])
    num_targets, num_tokens, num_with_padding, loss_sum, num_correct, norm = figures.tolist()
    if not num_targets:
        raise TrainingError(
            f"the rows of step {state.step + 1} have no token to predict: the tokenizer does not know the text's script"
        )
    if not (math.isfinite(loss_sum) and math.isfinite(norm)):
        _check_skipped(task, run, batches, state)
        norm = math.nan
    loss, accuracy = loss_sum / num_targets, 100 * num_correct / num_targets
    return Update(loss, accuracy, int(num_tokens), int(num_with_padding), int(num_targets), norm, rate)


def _check_skipped(task: Task, run: Run, batches: Sequence[Batch], state: TrainState) -> None:
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
        f"{run.folder / name}: lower the learning rate or inspect these rows; the same command resumes from the last "
        "checkpoint"
    )
