"""Starts the process that shows a run in a tracker, and reports how it ended."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from longmlm.artifacts.metrics import METRICS_FILE
from longmlm.errors import TrainingError

DONE = b"done"
PATIENCE_SECONDS = 30.0


def check_installed(tracker: Literal["wandb", "tensorboard"] | None) -> None:
    """Raises TrainingError when the tracker is not installed."""
    spec = tracker and find_spec(tracker)
    if tracker and (spec is None or spec.origin is None):  # a folder of that name is no package
        raise TrainingError(
            f"tracking.tracker is {tracker}, which is not installed: pip install 'longmlm[{tracker}]', or leave it out"
        )


@contextmanager
def tracked(run: Path, tracker: str | None, after: int) -> Iterator[None]:
    """Shows the metrics beyond step `after` in the tracker while the block runs, and prints in one line how that ended.

    A tracker that has not exited PATIENCE_SECONDS after the block is killed.
    """
    if tracker is None:
        yield
        return
    options = (str(run), str(after), str(PATIENCE_SECONDS))
    command = [sys.executable, "-P", "-m", "longmlm.training.tracker", *options]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0, start_new_session=True)
    except OSError as error:
        tqdm.write(_failure(tracker, str(error)))
        yield
        return
    reporter = threading.Thread(target=_report, args=(process, tracker), daemon=True)
    reporter.start()
    assert process.stdin is not None
    try:
        yield
        with suppress(BrokenPipeError):
            process.stdin.write(DONE)
    finally:
        process.stdin.close()
        reporter.join(PATIENCE_SECONDS)
        process.kill()
        reporter.join()


def _report(process: subprocess.Popen[bytes], tracker: str) -> None:
    assert process.stdout is not None
    with process.stdout as pipe:
        message, code = pipe.read().decode(errors="replace").strip(), process.wait()
    if code == -signal.SIGKILL:
        message = f"killed, or not finished {PATIENCE_SECONDS:.0f} s after training"
    if code or message:
        tqdm.write(_failure(tracker, message or f"exit code {code}") if code else message)


def _failure(tracker: str, reason: str) -> str:
    return f"{tracker} failed ({reason}); training is not affected, {METRICS_FILE} has every number"
