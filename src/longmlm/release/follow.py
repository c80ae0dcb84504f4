"""Following a run in training: publishes each new best checkpoint until the run is finished."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from longmlm.artifacts.metrics import METRICS_FILE
from longmlm.artifacts.run import RunSummary
from longmlm.errors import ArtifactError, ReleaseError, UnavailableError, UserError
from longmlm.release.publishing import reason_not_to_publish, step_label
from longmlm.training.run_folder import evaluated_checkpoints, list_checkpoints, read_state

POLL_SECONDS = 30.0


def follow(run: Path, allow_unrecovered: bool, publish_step: Callable[[Path], None]) -> None:
    """Publishes each new best checkpoint of a run until the run is finished; the run is only read.

    Tries again later when the hub is unavailable or training has just removed the checkpoint; other errors are raised.
    """
    if not run.is_dir():
        raise ReleaseError(f"{run}: no such run folder: start pretraining first")
    published, reported = None, set[Path]()
    while True:
        was_finished = is_finished(run)
        best = next(iter(evaluated_checkpoints(run)), None)
        for folder in unreadable_checkpoints(run) - reported:
            reported.add(folder)
            print(f"{step_label(folder)} is skipped: its state.json cannot be read", file=sys.stderr, flush=True)
        if best is not None and best != published:
            try:
                if reason := reason_not_to_publish(best, allow_unrecovered):
                    print(f"{step_label(best)} is not published: {reason}", flush=True)
                else:
                    publish_step(best)
                published = best
                continue
            except (UserError, OSError, KeyError) as error:
                may_pass = isinstance(error, UnavailableError) or not best.is_dir()
                if was_finished or not may_pass:
                    raise
                print(f"{step_label(best)} is not published yet: {error}", file=sys.stderr, flush=True)
        elif was_finished:
            print("the run is finished", flush=True)
            return
        time.sleep(POLL_SECONDS)


def is_finished(run: Path) -> bool:
    """Returns whether the run has written its summary after its last line of metrics."""
    try:
        return (run / RunSummary.FILE).stat().st_mtime_ns >= (run / METRICS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def unreadable_checkpoints(run: Path) -> set[Path]:
    """Returns the checkpoints whose state cannot be read."""
    unreadable = set()
    for folder in list_checkpoints(run):
        try:
            read_state(folder)
        except (OSError, ArtifactError):
            if folder.is_dir():  # unless training has just removed it
                unreadable.add(folder)
    return unreadable
