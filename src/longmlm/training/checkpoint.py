"""Saving a run in the background while training continues, and resuming it.

All that training changes is copied into the main process's memory, which a thread writes to disk, one checkpoint at a
time. A run resumes with the recipe, rows and precision that it was started with.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import differences
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.data.rows import Rows
from longmlm.errors import CheckpointError, TrainingError, counted, explained, naming
from longmlm.folders import GB, bytes_in, free_bytes, rewritten_folder
from longmlm.model.carried import save_model
from longmlm.model.position_table import stock_state
from longmlm.runtime.collectives import any_rank, broadcast_from_main
from longmlm.runtime.launch import generator_states, resolved_precision
from longmlm.runtime.watchdog import heartbeat, pause_watchdog
from longmlm.settings.pretrain import ComputePrecision, Precision, PretrainRecipe, number_format
from longmlm.training.backend import Backend, OptimizerState
from longmlm.training.run import Run, RunRecord, Task
from longmlm.training.run_folder import (
    CHECKPOINTS,
    OPTIMIZER,
    SETTINGS,
    checkpoint_folder,
    cursor_after,
    list_checkpoints,
    prune,
    read_state,
)
from longmlm.training.saved_tensors import read_generators, read_optimizer

POLL_SECONDS = 0.5
MAX_LISTED = 3
KEPT_OF_FINISHED = 2  # extra checkpoints that a continued run keeps: the last and the best one of the finished run


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stock weights, the optimizer's state and every rank's generator states, on the CPU and shared with nobody."""

    weights: dict[str, Tensor]
    optimizer: OptimizerState
    generators: list[dict[str, Tensor]]


def take_snapshot(backend: Backend, accelerator: Accelerator) -> Snapshot | None:
    """Returns the snapshot in the main process, None in the others; every rank must call it."""
    generators = gather_object([generator_states()])
    weights, optimizer = backend.gather_weights(), backend.gather_optimizer()
    if not accelerator.is_main_process:
        return None
    return Snapshot(stock_state(backend.objective.model, weights), optimizer, generators)


def write_checkpoint(
    run: Path, state: TrainState, model: PreTrainedModel, snapshot: Snapshot, record: RunRecord
) -> Path:
    """Writes the checkpoint of this step, in the main process, and returns its folder.

    Only the config of `model` is used. A checkpoint of the same step is replaced. Raises CheckpointError, and leaves
    nothing, when it cannot be written.
    """
    folder = checkpoint_folder(run, state.step)
    trained = replace(record.trained_on, steps=state.step, tokens=state.tokens, accuracy=state.accuracy_here)
    trained = replace(trained, pair_accuracy=state.pairs if state.evaluated_at_step == state.step else None)
    try:
        with naming(folder), rewritten_folder(folder) as partial:
            save_model(model, record.tokenizer, record.carried, partial, snapshot.weights)
            save_tensors(snapshot.optimizer, partial / OPTIMIZER)
            for rank, states in enumerate(snapshot.generators):
                save_tensors(states, partial / _generator_file(rank))
            artifact.write(partial / CheckpointState.FILE, record.at(state))
            artifact.write(partial / Provenance.FILE, replace(record.provenance, trained=trained))
            (partial / SETTINGS).write_text(record.settings, encoding="utf-8")
    except OSError as error:
        earlier = [checkpoint.name for checkpoint in list_checkpoints(run) if checkpoint < folder]
        kept = f"{earlier[-1]} is kept" if earlier else "there is no earlier one, so training would start over"
        reason = explained(error) or error
        raise CheckpointError(f"the checkpoint of step {state.step} could not be written; {kept}: {reason}") from error
    return folder


def save_tensors(content: object, path: Path) -> None:
    """Writes tensors. Without a file of Python's, errors of torch.save would not say what the system's was."""
    with path.open("wb") as file:
        torch.save(content, file)


def _generator_file(rank: int) -> str:
    return f"rng-{rank:05d}.pt"


@dataclass(slots=True)
class Saver:
    """Saves a run: training waits for the copy in memory, a thread of the main process writes it."""

    run: Run
    record: RunRecord
    writer: ThreadPoolExecutor
    pending: Future[None] | None = None

    def save(self, state: TrainState) -> None:
        """Takes a snapshot and starts to write it, once the previous one is written; all ranks call it.

        Raises what `finish` raises for the previous one.
        """
        self.finish()
        snapshot = take_snapshot(self.run.backend, self.run.accelerator)
        if snapshot is not None:
            self.pending = self.writer.submit(self._write, state, snapshot)

    def has_failed(self) -> bool:
        """Returns, without waiting, whether a checkpoint could not be written; only the main process knows."""
        return self.pending is not None and self.pending.done() and self.pending.exception() is not None

    def finish(self) -> None:
        """Waits until everything is written; raises CheckpointError on every rank when it could not be.

        The ranks synchronise meanwhile, so that no watchdog fires, however slow the disk is.
        """
        pending = [self.pending] if self.pending else []
        while any_rank(self.run.accelerator, bool(wait(pending, POLL_SECONDS).not_done)):
            heartbeat()
        error = self.pending.exception() if self.pending else None
        if any_rank(self.run.accelerator, error is not None):
            raise error or CheckpointError("the main process could not write a checkpoint")
        self.pending = None

    def _write(self, state: TrainState, snapshot: Snapshot) -> None:
        model = self.run.backend.objective.model
        saved = write_checkpoint(self.run.folder, state, model, snapshot, self.record)
        prune(self.run.folder, saved, self.run.runtime.checkpoints_kept)


@contextmanager
def saving(run: Run, record: RunRecord) -> Iterator[Saver]:
    """Yields the saver of a run; however the block exits, a checkpoint that was started is completed."""
    writer = ThreadPoolExecutor(1, "checkpoint")
    try:
        yield Saver(run, record, writer)
    finally:
        with pause_watchdog():
            writer.shutdown()


def restore(folder: Path, state: TrainState, run: Run) -> None:
    """Restores optimizer and generators from a verified checkpoint; the weights were loaded with the model.

    With a different number of processes a rank may have no generator state: it keeps its seed, which only dropout uses.
    """
    num_updates = state.step - state.skipped_steps
    objective = run.backend.objective
    is_scaled = objective.precision == "fp16"
    run.backend.restore_optimizer(read_optimizer(folder / OPTIMIZER, objective, num_updates, is_scaled))
    file = folder / _generator_file(run.accelerator.process_index)
    if file.is_file():
        read_generators(file)


def run_precision(
    requested: Precision, saved: CheckpointState | None, folder: Path | None
) -> tuple[ComputePrecision, tuple[str, ...]]:
    """Returns the precision that a run computes in, and a note if it is not the one `auto` means on this machine.

    A resumed run keeps its precision. Raises CheckpointError when this machine does not support it.
    """
    available = resolved_precision(requested)
    previous = saved.precision if saved else None
    if requested == "auto" and previous is None and available == "no" and torch.cuda.is_available():
        return "no", ("this GPU does not support bf16: the run computes in fp32; recipe.precision = 'fp16' is faster",)
    if requested != "auto" or previous is None or previous == available:
        return available, ()
    if previous == "bf16":
        raise CheckpointError(
            f"{folder} was trained in bf16, which this machine does not support: resume it on one that does, or start "
            f"a run in a new folder with start.checkpoint = {str(folder)!r} and recipe.precision = 'no'"
        )
    before, now = number_format(previous), number_format(available)
    note = f"{folder} was trained in {before}: the run continues in {before}, although auto means {now} on this machine"
    return previous, (note,)


def first_cursor(start: ModelSource | None, rows: Rows, recipe: PretrainRecipe, accelerator: Accelerator) -> int:
    """Returns the cursor at which a new run begins.

    A run that starts from another run's checkpoint goes on where that stopped, if the rows and their order are the
    same: it would repeat rows and masks otherwise. Raises ArtifactError if its state is damaged.
    """
    folder = Path(start.name if start else "")
    num_rows = broadcast_from_main(accelerator, lambda: cursor_after(folder, rows.sha256, recipe.seed, recipe.weights))
    if start and num_rows:
        accelerator.print(f"{start.name} was trained on {counted(num_rows, 'row')}: the run goes on after them")
    return num_rows


def resumable_state(folder: Path, record: RunRecord) -> TrainState:
    """Returns the progress in a checkpoint; raises CheckpointError when recipe or rows are not those of its run.

    num_steps may change as long as no learning rate so far depended on it. The precisions compared are those that the
    run computes in, if the checkpoint recorded it.
    """
    saved = read_state(folder)
    now = replace(record.recipe, precision=record.trained_on.precision or record.recipe.precision)
    problems = [difference.text for difference in differences(*saved.compared(now))]
    rows_sha256 = str(record.trained_on.rows_sha256)
    if saved.rows_sha256 != rows_sha256:
        problems.append(f"the rows' SHA-256 was {saved.rows_sha256[:12]}, is {rows_sha256[:12]}")
    if problems:
        raise CheckpointError(
            f"{folder.parent.parent} was started with different settings: {', '.join(problems[:MAX_LISTED])}; name a "
            f"new run folder, with start.checkpoint = {str(folder)!r} to start from these weights"
        )
    return saved.state


def notes_on_threads(folder: Path, record: RunRecord) -> tuple[str, ...]:
    """Returns a note if a checkpoint was saved with another number of CPU threads, on which the rounding depends."""
    saved = read_state(folder)
    before, now = saved.num_threads, record.at(saved.state).num_threads
    if before is None or now is None or before == now:
        return ()
    note = (
        f"{folder} was saved with {counted(before, 'thread')} per process, and now there are {now}: the run equals an "
        f"uninterrupted one up to rounding; with runtime.num_threads = {before} it does so bit for bit"
    )
    return (note,)


def check_room(run: Run, task: Task) -> None:
    """Raises TrainingError if the checkpoints to come do not fit on the disk; those that exist count as written."""
    number = run.runtime.num_checkpoints(task.num_steps) + (KEPT_OF_FINISHED if task.record.continuations else 0)
    needed = number * run.cost.checkpoint_bytes - bytes_in(run.folder / CHECKPOINTS)
    if needed > (free := free_bytes(run.folder)):
        raise TrainingError(
            f"the checkpoints in {run.folder} will take {needed / GB:.1f} GB more, {free / GB:.1f} GB are free: free "
            "some space, lower runtime.checkpoints_kept, or name a different run folder"
        )
