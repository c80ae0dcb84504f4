"""A global batch to one optimizer update."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longmlm.artifacts.run import TrainState
from longmlm.batches.collate import MlmBatch
from longmlm.errors import TrainingError
from longmlm.folders import write_json
from longmlm.runtime.watchdog import heartbeat
from longmlm.training import deepspeed_backend as zero
from longmlm.training.run import Run
from longmlm.training.schedule import learning_rate


@dataclass(frozen=True, slots=True)
class Update:
    """What one update saw, over all processes: mean loss in nats, share of hits, counts, and the rate it used."""

    loss: float
    accuracy: float
    num_tokens: int
    num_selected: int
    gradient_norm: float
    learning_rate: float


def one_update(run: Run, batches: Sequence[MlmBatch], state: TrainState) -> Update:
    """Makes one optimizer update on this process' share of a global batch.

    The loss is the cross-entropy summed over the selected tokens and divided by their number in the whole global
    batch, so its gradient is that of one big batch; data parallelism averages, hence the factor.
    """
    accelerator, here, is_zero = run.accelerator, run.accelerator.device, run.trained.is_zero
    num_mine = torch.tensor([sum(len(batch.labels) for batch in batches), _num_tokens(batches)], dtype=torch.float64)
    num_selected, num_tokens = accelerator.reduce(num_mine.to(here), "sum").tolist()
    if not num_selected:
        raise TrainingError(
            f"the rows of step {state.step + 1} hold special tokens only, none to select: the tokenizer does not know "
            "the text's script"
        )
    rate = learning_rate(state.step, run.recipe)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    sums = torch.zeros(2, dtype=torch.float64, device=here)
    loss_sum = hits = norm = math.nan
    for place, batch in enumerate(batches):
        is_last = place + 1 == len(batches)
        with nullcontext() if is_last or is_zero else accelerator.no_sync(run.objective):
            heartbeat()
            output = run.objective(batch.to(here))
            loss = output.loss_sum
            sums += torch.stack([loss.detach().double(), output.num_correct.double()])
            if is_last:
                loss_sum, hits = accelerator.reduce(sums, "sum").tolist()
                if not math.isfinite(loss_sum):
                    _refuse(run, batches, state)
            norm = _backward(run, loss * (accelerator.num_processes / num_selected), is_last)
    if not math.isfinite(norm):
        _refuse(run, batches, state)
    if not is_zero:
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
    return Update(loss_sum / num_selected, 100 * hits / num_selected, int(num_tokens), int(num_selected), norm, rate)


def _backward(run: Run, loss: Tensor, is_last: bool) -> float:
    """Adds the gradients of `loss`; returns the norm of all of them, which are clipped, after the last micro-batch.

    ZeRO makes the update with it, unless the norm is not finite.
    """
    if run.trained.is_zero:
        return zero.backward(run.accelerator, loss, is_last)
    run.accelerator.backward(loss)
    return float(nn.utils.clip_grad_norm_(run.objective.parameters(), run.recipe.max_gradient_norm)) if is_last else 0.0


def _num_tokens(batches: Sequence[MlmBatch]) -> int:
    return sum(
        batch.input_ids.numel() if batch.attention_mask is None else int(batch.attention_mask.sum())
        for batch in batches
    )


def _refuse(run: Run, batches: Sequence[MlmBatch], state: TrainState) -> None:
    name = f"non-finite-step-{state.step + 1:08d}-process-{run.accelerator.process_index}.json"
    row_ids = [row_id for batch in batches for row_id in batch.row_ids]
    write_json(run.folder / name, {"step": state.step + 1, "row_ids": row_ids})
    raise TrainingError(
        f"loss or gradient is not finite in step {state.step + 1}; no update was made, its rows are in "
        f"{run.folder / name}, the same command goes on from the last checkpoint: lower the learning rate or look at "
        "these rows"
    )
