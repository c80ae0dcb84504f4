"""Checkpoints written while training goes on, one at a time."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from longmlm.artifacts.run import TrainState
from longmlm.errors import CheckpointError
from longmlm.runtime.collectives import any_rank
from longmlm.runtime.watchdog import heartbeat, pause_watchdog
from longmlm.training import checkpoint
from longmlm.training.run import Run
from longmlm.training.snapshot import Snapshot, take

POLL_SECONDS = 0.5


@dataclass(slots=True)
class Saver:
    """Saves a run: training waits for the copy in memory, the disk is written to beside it."""

    run: Run
    writer: ThreadPoolExecutor
    pending: Future[None] | None = None

    def save(self, state: TrainState) -> None:
        """Takes this step's snapshot and begins to write it, once the one before is written; all processes call it.

        Raises what `finish` raises for the one before.
        """
        self.finish()
        snapshot = take(self.run.trained)
        if snapshot is not None:
            self.pending = self.writer.submit(_commit, self.run, state, snapshot)

    def has_failed(self) -> bool:
        """Says, without waiting, whether the disk did not take a checkpoint; the main process alone knows."""
        return self.pending is not None and self.pending.done() and self.pending.exception() is not None

    def finish(self) -> None:
        """Waits until all is written; raises CheckpointError in every process when the disk did not take it.

        However long the disk takes, no process is taken for hung, since all meet again and again.
        """
        while any(any_rank(self.run.accelerator, self._is_writing())):
            heartbeat()
        error = self.pending.exception() if self.pending is not None else None
        if any(any_rank(self.run.accelerator, error is not None)):
            raise error or CheckpointError("the main process could not write a checkpoint")
        self.pending = None

    def _is_writing(self) -> bool:
        """Says, a moment later, whether the disk is still at it."""
        return self.pending is not None and bool(wait([self.pending], timeout=POLL_SECONDS).not_done)


@contextmanager
def saving(run: Run) -> Iterator[Saver]:
    """Yields the saver of a run; however the block ends, what was begun is written to its end."""
    writer = ThreadPoolExecutor(1, "checkpoint")
    try:
        yield Saver(run, writer)
    finally:
        with pause_watchdog():
            writer.shutdown()


def _commit(run: Run, state: TrainState, snapshot: Snapshot) -> None:
    saved = checkpoint.write(run.folder, state, run.inner.model, snapshot, run.record)
    checkpoint.prune(run.folder, saved, run.runtime.checkpoints_kept)
