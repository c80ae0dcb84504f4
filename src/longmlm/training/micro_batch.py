"""Micro-batches: as many rows per forward pass as fit into the free memory of every rank, fewer when it runs out.

A single process that runs out of memory discards the gradients of the step, restores dropout's generators and repeats
the step with smaller micro-batches. An update that has started to change weights is not repeated. Several processes
cannot repeat a step: while one runs out of memory, the others already average gradients with it. So they try the
largest micro-batch of their first step without averaging, and agree on a size; a process that runs out of memory later
ends the run and says what to set. DeepSpeed communicates in every pass, so nothing is tried there.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from longmlm.artifacts.run import MicroBatch, TrainState
from longmlm.batches.sampling import largest_share
from longmlm.errors import RESUMES_FROM_CHECKPOINT, RankError, TrainingError, counted
from longmlm.folders import GB
from longmlm.model.cost import USED_SHARE, micro_batch_rows
from longmlm.progress import dated_line
from longmlm.runtime.collectives import any_rank, min_over_ranks
from longmlm.runtime.launch import free_memory_bytes, generator_states, restore_generators
from longmlm.runtime.memory import is_out_of_memory
from longmlm.settings.pretrain import PretrainRuntime
from longmlm.settings.shipped import LAUNCHES
from longmlm.training.run import Run, Task

MAX_EVALUATION_ROWS = 16


def bytes_needed(run: Run, num_rows: int) -> int:
    """Returns the bytes that a rank has still to allocate: gradients, optimizer state, activations of the rows."""
    return run.backend.gradient_bytes + run.backend.optimizer_bytes + run.cost.batch_bytes(num_rows)


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
    share = largest_share(rows_per_step, run.accelerator.num_processes)
    return micro_batch_rows(fitting, share, row_length, torch.cuda.is_available())


def remedy_for_one_row(run: Run) -> str:
    """Returns what a user can do when not even one row fits into memory."""
    is_kept = not run.runtime.activation_checkpointing
    return "set activation_checkpointing = true" if is_kept else "read shorter rows, or use a machine with more memory"


def rows_per_evaluation_batch(run: Run) -> int:
    """Returns the setting or, without one, the number of rows that fit on every rank, at least 1 and at most 16."""
    if run.runtime.rows_per_evaluation_batch is not None:
        return run.runtime.rows_per_evaluation_batch
    free = min_over_ranks(run.accelerator, free_memory_bytes())
    fitting = (int(USED_SHARE * free) - bytes_needed(run, 0)) // run.cost.evaluation_row_bytes
    return min(MAX_EVALUATION_ROWS, max(1, fitting))


@contextmanager
def unrepeatable_update(step: int) -> Iterator[None]:
    """Raises RankError if memory runs out in the block, where weights change: the update must not be repeated."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise RankError(
            f"out of memory in the update of step {step}, after its gradients were computed: free some memory, or use "
            f"{LAUNCHES / 'zero-2.yaml'} on several GPUs; {RESUMES_FROM_CHECKPOINT}"
        ) from error


def halve_micro_batches(task: Task, run: Run, step: int, error: RuntimeError) -> Task:
    """Returns the task with micro-batches of half the rows, and prints a line about it.

    The caller undoes the passes of the step and repeats it. Raises `error` if it is not about memory, and RankError
    if the step cannot be repeated, the user set the number of rows, or there is only one.
    """
    if not is_out_of_memory(error):
        raise error
    is_repeatable = run.accelerator.num_processes == 1 and run.backend.can_repeat_passes
    if is_repeatable and run.runtime.rows_per_micro_batch is None:
        return _with_half_the_rows(task, run, step)
    raise RankError(_what_to_set(task, run, step))


def undo_passes(run: Run, generators: Mapping[str, Tensor]) -> None:
    """Discards the gradients, restores the generators and frees what no tensor uses.

    Call it outside the except block: the error keeps the activations alive.
    """
    run.backend.objective.model.zero_grad(set_to_none=True)
    restore_generators(generators)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fitting_on_all_ranks(task: Task, run: Run, state: TrainState) -> Task:
    """Returns the task with micro-batches that fit on every rank, found by trying; the same task for a single process.

    A size that the user set is not changed. Raises TrainingError on every rank when not even one row fits.
    """
    is_set = run.runtime.rows_per_micro_batch is not None
    if is_set or run.accelerator.num_processes == 1 or not run.backend.can_repeat_passes:
        return task
    while any_rank(run.accelerator, not _fits(task, run, state)):
        task = _with_half_the_rows(task, run, state.step + 1)
    return task


def _fits(task: Task, run: Run, state: TrainState) -> bool:
    """Returns whether the largest micro-batch of the next step fits on this rank, and undoes what trying it changed."""
    generators, device = generator_states(), run.accelerator.device
    largest = max(task.batches[state.cursor], key=lambda batch: batch.num_tokens)
    num_bytes = 0 if state.step else run.backend.optimizer_bytes  # the first update allocates them
    try:
        reserved = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        output = run.backend.objective(largest.to(device))  # the objective itself: no rank waits for another
        torch.stack([loss for loss, _ in output.values()]).sum().backward()
        del reserved
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        undo_passes(run, generators)
    return True


def _with_half_the_rows(task: Task, run: Run, step: int) -> Task:
    num_rows = task.batches.rows_per_micro_batch
    if num_rows == 1:
        raise TrainingError(_what_to_set(task, run, step))
    if run.accelerator.is_main_process:
        fewer = counted(num_rows // 2, "row")
        dated_line(f"out of memory in step {step}: micro-batches of {fewer} from now on, not {num_rows}")
    return replace(task, batches=task.batches.in_micro_batches_of(num_rows // 2))


def _what_to_set(task: Task, run: Run, step: int) -> str:
    share = largest_share(task.batches.rows_per_step, run.accelerator.num_processes)
    num_rows = min(task.batches.rows_per_micro_batch, share)
    if num_rows == 1:
        return (
            f"out of memory in step {step} with one row at a time: {remedy_for_one_row(run)}; {RESUMES_FROM_CHECKPOINT}"
        )
    remedy = f"set runtime.rows_per_micro_batch = {num_rows // 2}"
    if run.runtime.rows_per_micro_batch is not None:
        remedy += " or leave it out"
    problem = f"out of memory in step {step} with micro-batches of {counted(num_rows, 'row')}"
    return f"{problem}: {remedy}; {RESUMES_FROM_CHECKPOINT}"
