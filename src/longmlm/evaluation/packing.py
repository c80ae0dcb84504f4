"""Checks, on the device of a run, that packed batches give the same losses as padded ones."""

from typing import Any, TypeVar

import torch

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.tasks import TaskBatch
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import inference
from longmlm.model.encoding import EncoderObjective
from longmlm.model.mlm import MlmObjective

Batch = TypeVar("Batch", MlmBatch, TaskBatch)
NUM_ROWS = 4
MAX_DIFFERENCE = 0.05  # of the mean loss, in nats; rounding in bf16 changes it by less than 0.01


def check_packed_attention(objective: MlmObjective, frozen: FrozenRows) -> tuple[str, ...]:
    """Compares both kinds of batches on some held-out rows, as `check_packed_batch` does."""
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids[: min(NUM_ROWS, frozen.rows_per_batch)]]
    return check_packed_batch(objective, collate(masked, frozen.special.pad), collate(masked, None))


def check_packed_batch(objective: EncoderObjective[Any], padded: Batch, packed: Batch) -> tuple[str, ...]:
    """Compares the loss on a batch in both kinds; if they differ, sets the model to padded ones.

    Returns the reason as one line, or nothing if they agree.
    """
    try:
        with inference(objective):
            losses = [mean_loss(objective, batch) for batch in (padded, packed)]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"fails: {str(error).splitlines()[0]}"
    else:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the size of micro-batches depends on the memory that is free
        if abs(losses[1] - losses[0]) <= MAX_DIFFERENCE:
            return ()
        reason = f"gives a loss of {losses[1]:.3f}, padded rows {losses[0]:.3f}"
    objective.encoder.set_attn_implementation("sdpa")
    return (f"attention over packed rows {reason} (torch {torch.__version__}): rows are padded instead",)


def mean_loss(objective: EncoderObjective[Any], batch: Batch) -> float:
    """Returns the loss in nats per target of the batch."""
    return float(objective(batch.to(objective.model.device))[0]) / batch.num_targets
