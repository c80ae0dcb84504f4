"""Checks, on the device of a run, that packed batches give what padded ones give."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from longmlm.batches.collate import collate
from longmlm.batches.examples import Example
from longmlm.batches.tasks import TaskBatch, collate_examples
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import inference
from longmlm.model.encoding import EncoderObjective, TaskObjective, tokens_of
from longmlm.model.mlm import MlmObjective

NUM_ROWS = 4
MAX_DIFFERENCE = 0.05  # of the mean loss, in nats; rounding in bf16 changes it by less than 0.01
MAX_RELATIVE = 0.15  # of hidden states; rounding in bf16 changes them by less than 0.03


def check_packed_attention(objective: MlmObjective, frozen: FrozenRows) -> tuple[str, ...]:
    """Compares the loss on some held-out rows, padded and packed; if they differ, the model reads padded ones.

    Returns the reason as one line, or nothing if they agree.
    """
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids[: min(NUM_ROWS, frozen.rows_per_batch)]]

    def difference() -> str:
        batches = [collate(masked, pad).to(objective.model.device) for pad in (frozen.special.pad, None)]
        padded, packed = (float(objective(batch)["mlm"].loss_sum) / len(batch.labels) for batch in batches)
        is_equal = abs(packed - padded) <= MAX_DIFFERENCE
        return "" if is_equal else f"gives a loss of {packed:.3f}, padded rows {padded:.3f}"

    return _checked(objective, difference)


def check_packed_examples(objective: TaskObjective, examples: Sequence[Example], pad: int) -> tuple[str, ...]:
    """Compares the hidden states of the shortest documents in the same way; on a CPU, does nothing.

    A new head's loss would not show a difference.
    """
    if not objective.reads_packed_batches or objective.model.device.type == "cpu":
        return ()
    return compare_packed_examples(objective, sorted(examples, key=len)[:NUM_ROWS], pad)


def compare_packed_examples(objective: TaskObjective, examples: Sequence[Example], pad: int) -> tuple[str, ...]:
    """Compares the hidden states of these documents, padded and packed; if they differ, the model reads padded ones."""

    def states(batch: TaskBatch) -> torch.Tensor:
        batch = batch.to(objective.model.device)
        with objective.autocast(batch.input_ids):
            return tokens_of(objective.hidden_states(batch), batch).float()

    def difference() -> str:
        padded, packed = (states(collate_examples(examples, one)) for one in (pad, None))
        relative = float((packed - padded).norm() / padded.norm())
        return "" if relative <= MAX_RELATIVE else f"gives hidden states that differ by {relative:.0%}"

    return _checked(objective, difference)


def _checked(objective: EncoderObjective[Any], difference: Callable[[], str]) -> tuple[str, ...]:
    try:
        with inference(objective):
            reason = difference()
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
