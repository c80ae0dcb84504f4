"""Checks, on the device of a run, that packed batches give the same losses as padded ones."""

import torch

from longmlm.batches.collate import collate
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import inference
from longmlm.model.mlm import MlmObjective

NUM_ROWS = 4
MAX_DIFFERENCE = 0.05  # of the mean loss, in nats; rounding in bf16 changes it by less than 0.01


def check_packed_attention(objective: MlmObjective, frozen: FrozenRows) -> tuple[str, ...]:
    """Compares both kinds of batches on some held-out rows; if they differ, sets the model to padded ones.

    Returns the reason as one line, or nothing if they agree.
    """
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids[: min(NUM_ROWS, frozen.rows_per_batch)]]
    losses = []
    try:
        with inference(objective):
            for pad in (frozen.special.pad, None):
                batch = collate(masked, pad).to(objective.model.device)
                losses.append(float(objective.predict(batch).losses.mean()))
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
    objective.model.set_attn_implementation("sdpa")
    return (f"attention over packed rows {reason} (torch {torch.__version__}): rows are padded instead",)
