"""Micro-batches: as many rows per forward pass as fit into the free memory of every rank."""

import math

import torch
from accelerate import Accelerator

from longmlm.artifacts.run import MicroBatch
from longmlm.data.disk import GB
from longmlm.errors import TrainingError, counted
from longmlm.model.cost import USED_SHARE, Cost, micro_batch_rows
from longmlm.runtime.collectives import min_over_ranks
from longmlm.runtime.launch import free_memory_bytes
from longmlm.settings.pretrain import PretrainRuntime
from longmlm.training.run import Run

MAX_EVALUATION_ROWS = 16


def bytes_needed(run: Run, num_rows: int) -> int:
    """Returns the bytes that a rank still has to allocate: gradients, moments, the activations of `num_rows` rows."""
    unallocated = run.backend.unallocated_bytes(run.cost.state_bytes // 4, run.cost.state_bytes // 2)
    return unallocated + run.cost.batch_bytes(num_rows)


def micro_batch_of(runtime: PretrainRuntime, num_processes: int, num_rows: int) -> MicroBatch | None:
    """Returns what a checkpoint records of micro-batches of `num_rows` rows; None if the user set the number."""
    if runtime.rows_per_micro_batch is not None:
        return None
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    recomputed = runtime.activation_checkpointing
    return MicroBatch(num_rows=num_rows, num_processes=num_processes, device=device, is_recomputed=recomputed)


def rows_per_micro_batch(run: Run, rows_per_step: int, row_length: int, saved: MicroBatch | None = None) -> int:
    """Returns the setting or, without one, the number of rows that fit on every rank, which it also prints.

    A run that resumes on the same device, with the same number of processes and enough memory, keeps the `saved`
    number, so that it equals an uninterrupted run. Raises TrainingError on every rank when not even one row fits.
    """
    if run.runtime.rows_per_micro_batch is not None:
        return run.runtime.rows_per_micro_batch
    free = min_over_ranks(run.accelerator, free_memory_bytes())
    num_processes, num_rows = run.accelerator.num_processes, saved.num_rows if saved else 0
    is_same_setup = saved is not None and saved == micro_batch_of(run.runtime, num_processes, num_rows)
    if not is_same_setup or bytes_needed(run, num_rows) > free:
        num_rows = _fitting_rows(run, free, rows_per_step, row_length)
    need = f"about {bytes_needed(run, num_rows) / GB:.1f} of {free / GB:.1f} GB of free memory"
    run.accelerator.print(f"micro-batches of {counted(num_rows, 'row')} per process: {need}")
    return num_rows


def _fitting_rows(run: Run, free: int, rows_per_step: int, row_length: int) -> int:
    fitting = run.cost.fitting_rows(free, bytes_needed(run, 0))
    if not fitting:
        raise TrainingError(
            f"a process needs about {bytes_needed(run, 1) / GB:.1f} GB of memory to train with one row at a time, "
            f"but only {free / GB:.1f} GB are free: {remedy_for_one_row(run)}"
        )
    share = math.ceil(rows_per_step / run.accelerator.num_processes)
    return micro_batch_rows(fitting, share, row_length, torch.cuda.is_available())


def remedy_for_one_row(run: Run) -> str:
    """Returns what a user can do when not even one row fits into memory."""
    is_kept = not run.runtime.activation_checkpointing
    return (
        "set activation_checkpointing = true"
        if is_kept
        else "read shorter rows or documents, or use a machine with more memory"
    )


def rows_per_evaluation_batch(run: Run) -> int:
    """Returns the setting or, without one, the number of rows that fit on every rank, at least 1 and at most 16."""
    return fitting_evaluation_rows(run.accelerator, run.runtime, run.cost, bytes_needed(run, 0))


def fitting_evaluation_rows(accelerator: Accelerator, runtime: PretrainRuntime, cost: Cost, reserved: int = 0) -> int:
    """Returns what rows_per_evaluation_batch does, for a rank that still has to allocate `reserved` bytes."""
    if runtime.rows_per_evaluation_batch is not None:
        return runtime.rows_per_evaluation_batch
    free = min_over_ranks(accelerator, free_memory_bytes())
    fitting = (int(USED_SHARE * free) - reserved) // cost.evaluation_row_bytes
    return min(MAX_EVALUATION_ROWS, max(1, fitting))
