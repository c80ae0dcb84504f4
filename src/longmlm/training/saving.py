"""Checkpoints written while training goes on, one at a time."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from longmlm.errors import CheckpointError
from longmlm.runtime import unwatched
from longmlm.training import checkpoint
from longmlm.training.run import Run
from longmlm.training.snapshot import Snapshot, take
from longmlm.training.state import TrainState


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
        with unwatched():
            snapshot = take(self.run.trained)
        if snapshot is not None:
            self.pending = self.writer.submit(_commit, self.run, state, snapshot)

    def has_failed(self) -> bool:
        """Says, without waiting, whether the disk did not take a checkpoint; the main process alone knows."""
        return self.pending is not None and self.pending.done() and self.pending.exception() is not None

    def finish(self) -> None:
        """Waits until all is written; raises CheckpointError in every process when the disk did not take it."""
        with unwatched():
            error = self.pending.exception() if self.pending is not None else None
            if any(anyone(self.run.accelerator, error is not None)):
                raise error or CheckpointError("the main process could not write a checkpoint")
        self.pending = None


@contextmanager
def saving(run: Run) -> Iterator[Saver]:
    """Yields the saver of a run; however the block ends, what was begun is written to its end."""
    with ThreadPoolExecutor(1, "checkpoint") as writer:
        yield Saver(run, writer)


def anyone(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Returns in every process, for each flag, whether it is set in any."""
    raised = accelerator.reduce(torch.tensor(flags, dtype=torch.int32, device=accelerator.device), "sum")
    return [count > 0 for count in raised.tolist()]


def _commit(run: Run, state: TrainState, snapshot: Snapshot) -> None:
    saved = checkpoint.write(run.folder, state, run.inner.model, snapshot, run.record)
    checkpoint.prune(run.folder, saved, run.runtime.checkpoints_kept)
