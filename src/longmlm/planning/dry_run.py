"""Dry run: checks everything, makes two steps, reports what a run would take, and writes nothing."""

import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts.run import TrainState
from longmlm.batches.sampling import largest_share
from longmlm.errors import TrainingError, counted
from longmlm.folders import GB, free_bytes
from longmlm.planning.estimate import evaluations_as_steps
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.launch import free_memory_bytes, peak_memory_bytes
from longmlm.training.checkpoint import check_room, resumable_state
from longmlm.training.loop import fitting_update
from longmlm.training.micro_batch import bytes_needed, fitting_on_all_ranks
from longmlm.training.run import Run, Task, description


def dry_run(task: Task, run: Run, resumed_from: Path | None) -> str:
    """Returns what the run would take from its checkpoint on: tokens, epochs, hours, memory, disk.

    Two steps are made, of which the second is timed; the run folder is not touched. Raises TrainingError when memory or
    disk do not suffice, and every error that the run itself would raise before its first step.
    """
    state = resumable_state(resumed_from, task.record) if resumed_from else TrainState(cursor=task.record.cursor)
    num_steps, batches = task.num_steps, task.batches
    steps_left = num_steps - state.step
    if steps_left <= 0:
        return f"{run.folder} is finished: {state.step} of {counted(num_steps, 'step')}"
    share = largest_share(batches.rows_per_step, run.accelerator.num_processes)
    memory = bytes_needed(run, min(batches.rows_per_micro_batch, share))
    free_memory = free_memory_bytes()
    if any_rank(run.accelerator, memory > free_memory):
        raise TrainingError(
            f"a process needs about {memory / GB:.1f} GB of memory, {free_memory / GB:.1f} GB are free: lower "
            "rows_per_micro_batch, or set activation_checkpointing = true"
        )
    check_room(run, task)
    scratch = Path(tempfile.mkdtemp(prefix="longmlm-dry-run-"))
    try:
        task, seconds, tokens = _two_steps(task, replace(run, folder=scratch), state)
    finally:
        with suppress(OSError):  # the rows of a loss that is not finite stay
            scratch.rmdir()
    epochs = steps_left * batches.rows_per_step / batches.num_rows
    held = f"about {memory / GB:.1f} GB per process, {peak_memory_bytes() / GB:.1f} GB held in two steps"
    number = counted(run.runtime.num_checkpoints(num_steps), "checkpoint")
    kept = f"at most {number} of {run.cost.checkpoint_bytes / GB:.2f} GB"
    lines = {
        **description(task, run),
        "start": f"step {state.step} of {num_steps}" + (f", {resumed_from.name}" if resumed_from else ""),
        "ahead": f"{counted(steps_left, 'step')}, {steps_left * tokens / 1e6:,.1f} M tokens, {epochs:.2f} epochs",
        "time": _duration(task, run, steps_left, seconds, tokens),
        "memory": f"{held}, {free_memory / GB:.1f} GB were free",
        "disk": f"{kept}, {free_bytes(run.folder) / GB:.1f} GB are free",
        "dry run": "nothing was written",
    }
    return "\n".join(f"{name:12}{text}" for name, text in lines.items())


def _duration(task: Task, run: Run, steps_left: int, seconds: float, tokens: int) -> str:
    evaluated = (2 if task.recipe.pairs else 1) * task.evaluation.num_rows / task.batches.rows_per_step
    hours = (steps_left + evaluations_as_steps(steps_left, run.runtime, evaluated)) * seconds / 3600
    return f"{seconds:.2f} s per step ({tokens / seconds:,.0f} tokens/s), about {hours:.1f} hours with evaluations"


def _two_steps(task: Task, run: Run, state: TrainState) -> tuple[Task, float, int]:
    """Returns the task with micro-batches that fit, and the seconds and tokens of the second step, if there is one."""
    task = fitting_on_all_ranks(task, run, state)
    seconds, num_tokens = 0.0, 0
    for _ in range(min(2, task.num_steps - state.step)):
        batches = task.batches[state.cursor]
        started = time.monotonic()
        task, update = fitting_update(task, run, batches, state)
        seconds = time.monotonic() - started
        num_tokens = update.num_tokens
        state = state.after_update(task.batches.rows_per_step, num_tokens, seconds)
    return task, seconds, num_tokens
