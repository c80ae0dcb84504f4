"""Checkpoints written in the background while training continues, one at a time."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from longmlm.artifacts.run import TrainState
from longmlm.errors import CheckpointError
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.watchdog import heartbeat, pause_watchdog
from longmlm.training.checkpoint import Snapshot, take_snapshot, write_checkpoint
from longmlm.training.run import Run, Task
from longmlm.training.run_folder import prune

POLL_SECONDS = 0.5


@dataclass(slots=True)
class Saver:
    """Saves a run: training waits for the copy in memory, a thread of the main process writes it."""

    task: Task
    run: Run
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

        The ranks meet again and again meanwhile, so none is taken for hung however slow the disk is.
        """
        while any(any_rank(self.run.accelerator, self._is_writing())):
            heartbeat()
        error = self.pending.exception() if self.pending is not None else None
        if any(any_rank(self.run.accelerator, error is not None)):
            raise error or CheckpointError("the main process could not write a checkpoint")
        self.pending = None

    def _is_writing(self) -> bool:
        """Waits a moment, and returns whether the checkpoint is still being written."""
        return self.pending is not None and bool(wait([self.pending], timeout=POLL_SECONDS).not_done)

    def _write(self, state: TrainState, snapshot: Snapshot) -> None:
        folder, model = self.run.folder, self.run.backend.objective.model
        saved = write_checkpoint(folder, state, model, snapshot, self.task.record)
        prune(folder, saved, self.run.runtime.checkpoints_kept)


@contextmanager
def saving(task: Task, run: Run) -> Iterator[Saver]:
    """Yields the saver of a run; however the block exits, a checkpoint that was started is completed."""
    writer = ThreadPoolExecutor(1, "checkpoint")
    try:
        yield Saver(task, run, writer)
    finally:
        with pause_watchdog():
            writer.shutdown()
