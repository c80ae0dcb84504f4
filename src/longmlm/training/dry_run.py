"""Dry run: checks everything, makes two steps, reports what the run would do, and writes nothing."""

import math
import platform
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.memory import free_memory_bytes, peak_memory_bytes
from longmlm.training.resume import resumable_state
from longmlm.training.run import Run, Task
from longmlm.training.update import one_update

GB = 1e9


def dry_run(task: Task, run: Run, resumed_from: Path | None) -> str:
    """Returns what the run would do from its checkpoint on: tokens, epochs, hours, memory, disk.

    Two steps are made, of which the second is timed; the run folder is not touched. Raises TrainingError when memory or
    disk do not suffice, and every error that the run itself would raise before its first step.
    """
    state = resumable_state(resumed_from, task.record) if resumed_from else TrainState()
    steps_left = task.recipe.num_steps - state.step
    if steps_left <= 0:
        return f"{run.folder} is finished: {state.step} of {task.recipe.num_steps} steps are made"
    memory, disk = _memory_needed(task, run), _num_checkpoints(run) * run.cost.checkpoint_bytes
    free_memory, free_disk = free_memory_bytes(), shutil.disk_usage(_existing(run.folder)).free
    if any(any_rank(run.accelerator, memory > free_memory)):
        raise TrainingError(
            f"a process needs about {memory / GB:.1f} GB of memory, {free_memory / GB:.1f} GB are free: lower "
            "rows_per_micro_batch, or set activation_checkpointing = true"
        )
    if disk > free_disk:
        raise TrainingError(
            f"the checkpoints in {run.folder} will take {disk / GB:.1f} GB, {free_disk / GB:.1f} GB are free: make "
            "room, lower checkpoints_kept, or name another run folder"
        )
    with tempfile.TemporaryDirectory() as scratch:
        seconds, tokens = _two_steps(task, replace(run, folder=Path(scratch)), state)
    held = f"about {memory / GB:.1f} GB per process, {peak_memory_bytes() / GB:.1f} GB held in two steps"
    kept = f"at most {_num_checkpoints(run)} checkpoints of {run.cost.checkpoint_bytes / GB:.2f} GB"
    start = f"step {state.step} of {task.recipe.num_steps}" + (f", {resumed_from.name}" if resumed_from else "")
    lines = [
        *_description(task, run),
        ["start", start],
        ["ahead", _work_ahead(task, steps_left, tokens)],
        ["time", _duration(task, run, steps_left, seconds, tokens)],
        ["memory", f"{held}, {free_memory / GB:.1f} GB were free"],
        ["disk", f"{kept}, {free_disk / GB:.1f} GB are free"],
    ]
    return "\n".join(f"{name:12}{text}" for name, text in (*lines, ("dry run", "nothing was written")))


def _description(task: Task, run: Run) -> list[list[str]]:
    model, batches, rows = run.backend.objective.model, task.batches, task.batches.rows
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads each"
    )
    precision = "bf16" if task.record.trained_on.precision == "bf16" else "fp32"
    num_parameters = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    filled = f"{len(rows):,} of {rows.row_length}, {rows.mean_fill:.1%} full"
    return [
        ["environment", versions],
        ["processes", f"{run.accelerator.num_processes} on {device}; computing in {precision}"],
        ["model", f"{model.config.model_type}, {num_parameters / 1e6:.1f} M parameters"],
        ["rows", f"{filled}; {task.evaluation.num_rows:,} held out"],
        ["step", f"{batches.rows_per_step} rows, micro-batches of {batches.rows_per_micro_batch} per process"],
    ]


def _work_ahead(task: Task, steps_left: int, tokens: int) -> str:
    epochs = steps_left * task.batches.rows_per_step / len(task.batches.rows)
    return f"{steps_left:,} steps, {steps_left * tokens / 1e6:,.1f} M tokens, {epochs:.2f} epochs"


def _duration(task: Task, run: Run, steps_left: int, seconds: float, tokens: int) -> str:
    """Returns the hours of steps and evaluations, which only run forward: a third of a step's work per token."""
    evaluations = math.ceil(steps_left / run.runtime.evaluate_every_steps) + 2
    evaluated_tokens = task.evaluation.num_rows * task.batches.rows.row_length
    hours = (steps_left + evaluations * evaluated_tokens / tokens / 3) * seconds / 3600
    return f"{seconds:.2f} s per step ({tokens / seconds:,.0f} tokens/s), about {hours:.1f} hours with evaluations"


def _two_steps(task: Task, run: Run, state: TrainState) -> tuple[float, int]:
    for _ in range(2):
        batches = task.batches[state.cursor]
        started = time.monotonic()
        update = one_update(task, run, batches, state)
        seconds = time.monotonic() - started
        state = state.after_update(task.batches.rows_per_step, update.num_tokens, seconds)
    return seconds, update.num_tokens


def _memory_needed(task: Task, run: Run) -> int:
    """Returns the bytes that a process takes on top of the weights: gradients, moments, a micro-batch."""
    largest_share = math.ceil(task.batches.rows_per_step / run.accelerator.num_processes)
    num_rows = min(task.batches.rows_per_micro_batch, largest_share)
    unallocated = run.backend.unallocated_bytes(run.cost.state_bytes // 4, run.cost.state_bytes // 2)
    return unallocated + num_rows * run.cost.row_bytes


def _num_checkpoints(run: Run) -> int:
    """Returns how many are on the disk at once: the newest, the best, and the one being written."""
    return run.runtime.checkpoints_kept + 2


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
