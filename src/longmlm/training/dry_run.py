"""A run to what it would do: everything checked, two steps made, nothing written."""

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
from longmlm.training import checkpoint
from longmlm.training.run import Run
from longmlm.training.update import one_update

GB = 1e9


def dry_run(run: Run, resumed_from: Path | None) -> str:
    """Returns what the run would do from here on: tokens, epochs, hours, memory, checkpoints on disk.

    Two steps are made, the second is timed; the run folder is not touched. Raises TrainingError when memory or disk
    will not do, and whatever error the run would begin with.
    """
    state = checkpoint.resumable_state(resumed_from, run.record) if resumed_from else TrainState()
    steps_left = run.recipe.num_steps - state.step
    if steps_left <= 0:
        return f"{run.folder} is finished: {state.step} of {run.recipe.num_steps} steps are made"
    memory, disk = _memory_needed(run), _disk_needed(run)
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
    with tempfile.TemporaryDirectory() as aside:
        seconds, tokens = _two_steps(replace(run, folder=Path(aside)), state)
    held = f"about {memory / GB:.1f} GB a process, {peak_memory_bytes() / GB:.1f} GB held in two steps"
    kept = f"{_num_checkpoints(run)} checkpoints of {run.cost.checkpoint_bytes / GB:.2f} GB at most"
    lines = [
        *_what(run),
        ["from", f"step {state.step} of {run.recipe.num_steps}" + (f", {resumed_from.name}" if resumed_from else "")],
        ["ahead", _ahead(run, steps_left, tokens)],
        ["time", _time(run, steps_left, seconds, tokens)],
        ["memory", f"{held}, {free_memory / GB:.1f} GB were free"],
        ["disk", f"{kept}, {free_disk / GB:.1f} GB are free"],
    ]
    return "\n".join(f"{name:12}{text}" for name, text in (*lines, ("dry run", "nothing was written")))


def _what(run: Run) -> list[list[str]]:
    accelerator, model, batches = run.accelerator, run.inner.model, run.batches
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads each"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    num_parameters = sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters())
    rows = batches.rows
    return [
        ["environment", versions],
        ["processes", f"{accelerator.num_processes} on {here}; computing in {'bf16' if run.inner.is_bf16 else 'fp32'}"],
        ["model", f"{model.config.model_type}, {num_parameters / 1e6:.1f} M parameters"],
        [
            "rows",
            f"{len(rows):,} of {rows.row_length}, {rows.mean_fill:.1%} full; {len(run.held_out.row_ids):,} held out",
        ],
        ["step", f"{batches.recipe.rows_per_step} rows, {batches.rows_per_micro_batch} at a time in a process"],
    ]


def _ahead(run: Run, steps_left: int, tokens: int) -> str:
    epochs = steps_left * run.batches.recipe.rows_per_step / len(run.batches.rows)
    return f"{steps_left:,} steps, {steps_left * tokens / 1e6:,.1f} M tokens, {epochs:.2f} epochs"


def _time(run: Run, steps_left: int, seconds: float, tokens: int) -> str:
    """Returns hours of steps and of evaluations, which go forward only: a third of the work."""
    evaluations = math.ceil(steps_left / run.runtime.evaluate_every_steps) + 2
    evaluated_tokens = len(run.held_out.row_ids) * run.batches.rows.row_length
    hours = (steps_left + evaluations * evaluated_tokens / tokens / 3) * seconds / 3600
    return f"{seconds:.2f} s a step ({tokens / seconds:,.0f} tokens/s), about {hours:.1f} hours with evaluations"


def _two_steps(run: Run, state: TrainState) -> tuple[float, int]:
    for cursor in (state.cursor, state.cursor + run.batches.recipe.rows_per_step):
        batches = run.batches[cursor]
        started = time.monotonic()
        update = one_update(run, batches, state)
    return time.monotonic() - started, update.num_tokens


def _memory_needed(run: Run) -> int:
    """Returns the bytes that come to what is there already: gradients, moments, a micro-batch.

    Weights are there, under ZeRO moments too; from stage 2 on a process keeps its share of the gradients.
    """
    gradients, moments = run.cost.state_bytes // 4, run.cost.state_bytes // 2
    if (plugin := run.accelerator.deepspeed_plugin) is not None:
        gradients, moments = gradients // (run.accelerator.num_processes if plugin.zero_stage > 1 else 1), 0
    share = math.ceil(run.batches.recipe.rows_per_step / run.accelerator.num_processes)
    return gradients + moments + min(run.batches.rows_per_micro_batch, share) * run.cost.row_bytes


def _num_checkpoints(run: Run) -> int:
    """Returns how many lie on the disk at once: the newest, the best, and the one being written."""
    return run.runtime.checkpoints_kept + 2


def _disk_needed(run: Run) -> int:
    return _num_checkpoints(run) * run.cost.checkpoint_bytes


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
