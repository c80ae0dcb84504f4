"""Halves the micro-batches when training runs out of memory, from the same step on.

A single process discards the gradients of the step, restores dropout's generators and repeats the step, as if it had
had the smaller micro-batches before. An update that has started to change weights is not repeated.

Several processes cannot repeat a step: while one runs out of memory, the others already average gradients with it. So
they try the largest micro-batch of their first step without averaging, and agree on a size. A process that runs out of
memory later ends the run and says what to set. DeepSpeed communicates in every pass, so nothing is tried there.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from longmlm.artifacts.run import TrainState
from longmlm.errors import RankError, TrainingError, counted
from longmlm.progress import dated_line
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.launch import generator_states, restore_generators
from longmlm.runtime.memory import is_out_of_memory
from longmlm.settings.pipeline import LAUNCHES
from longmlm.training.micro_batch import remedy_for_one_row
from longmlm.training.run import Run, Task

RESUME = "the same command resumes from the last checkpoint"


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
            f"{LAUNCHES / 'zero-2.yaml'} on several GPUs; {RESUME}"
        ) from error


def halve_micro_batches(task: Task, run: Run, step: int, error: RuntimeError) -> Task:
    """Returns the task with micro-batches of half the rows, and prints a line about it.

    The caller undoes the passes of the step and repeats it. Raises `error` if it is not about memory, and RankError
    if the step cannot be repeated, the user set the number of rows, or there is only one.
    """
    if not is_out_of_memory(error):
        raise error
    is_repeatable = run.accelerator.num_processes == 1 and run.accelerator.deepspeed_plugin is None
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
    if is_set or run.accelerator.num_processes == 1 or run.accelerator.deepspeed_plugin is not None:
        return task
    while any_rank(run.accelerator, not _fits(task, run, state)):
        task = _with_half_the_rows(task, run, state.step + 1)
    return task


def _fits(task: Task, run: Run, state: TrainState) -> bool:
    """Returns whether the largest micro-batch of the next step fits on this rank, and undoes what trying it changed."""
    generators, device = generator_states(), run.accelerator.device
    largest = max(task.batches[state.cursor], key=lambda batch: batch.num_tokens)
    moments = 0 if state.step else run.cost.state_bytes // 2  # the first update allocates them
    try:
        reserved = torch.empty(run.backend.unallocated_bytes(0, moments), dtype=torch.uint8, device=device)
        run.backend.objective(largest.to(device))[0].backward()  # the objective itself: no rank waits for another
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
    share = math.ceil(task.batches.rows_per_step / run.accelerator.num_processes)
    num_rows = min(task.batches.rows_per_micro_batch, share)
    if num_rows == 1:
        return f"out of memory in step {step} with one row at a time: {remedy_for_one_row(run)}; {RESUME}"
    remedy = f"set runtime.rows_per_micro_batch = {num_rows // 2}"
    if run.runtime.rows_per_micro_batch is not None:
        remedy += " or leave it out"
    return f"out of memory in step {step} with micro-batches of {counted(num_rows, 'row')}: {remedy}; {RESUME}"
