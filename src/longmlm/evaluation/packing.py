"""Checks, on the device of a run, that packed batches give what padded ones give."""

import torch

from longmlm.batches.collate import collate
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import inference
from longmlm.model.mlm import MlmObjective

NUM_ROWS = 4
MAX_DIFFERENCE = 0.05  # of the mean loss, in nats; rounding in bf16 changes it by less than 0.01


def check_packed_attention(objective: MlmObjective, frozen: FrozenRows) -> tuple[str, ...]:
    """Compares the loss on some held-out rows, padded and packed; if they differ, the model reads padded ones.

    Returns the reason as one line, or nothing if they agree.
    """
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids[: min(NUM_ROWS, frozen.rows_per_batch)]]
    try:
        with inference(objective):
            batches = [collate(masked, pad).to(objective.model.device) for pad in (frozen.special.pad, None)]
            padded, packed = (float(objective(batch)["mlm"].loss_sum) / len(batch.labels) for batch in batches)
        is_equal = abs(packed - padded) <= MAX_DIFFERENCE
        reason = "" if is_equal else f"gives a loss of {packed:.3f}, padded rows {padded:.3f}"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"fails: {str(error).splitlines()[0]}"
    if not reason:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the size of micro-batches depends on the memory that is free
        return ()
    objective.encoder.set_attn_implementation("sdpa")
    return (f"attention over packed rows {reason} (torch {torch.__version__}): rows are padded instead",)
