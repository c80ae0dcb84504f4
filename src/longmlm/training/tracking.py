"""Metrics to metrics.jsonl, the record of a run, which a tracker shows in a process of its own."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from longmlm.errors import TrainingError
from longmlm.folders import PARTIAL

METRICS = "metrics.jsonl"
SETTINGS = "settings.toml"
DONE = b"done"
PATIENCE_SECONDS = 30.0


def append(run: Path, line: dict[str, Any]) -> None:
    """Adds one line."""
    with (run / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(run: Path) -> list[dict[str, Any]]:
    """Returns the lines written so far; a line that a crash tore is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        with suppress(ValueError):
            found += [json.loads(line)] if line.endswith("\n") else []
    return found


def forget_after(run: Path, step: int) -> None:
    """Drops the lines beyond `step`, which a resumed run is going to write again."""
    kept = [line for line in read(run) if line["step"] <= step]
    aside = run / f"{METRICS}{PARTIAL}"
    aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    aside.replace(run / METRICS)


def require(tracker: Literal["wandb", "tensorboard"] | None) -> None:
    """Raises TrainingError when the tracker is not installed."""
    found = tracker and find_spec(tracker)
    if tracker and (found is None or found.origin is None):  # a folder of that name is none
        raise TrainingError(
            f"tracking.tracker is {tracker}, which is not installed: pip install 'longmlm[{tracker}]', or leave it out"
        )


@contextmanager
def tracked(run: Path, tracker: str | None, after: int) -> Iterator[None]:
    """Shows the lines beyond step `after` in the tracker while the block runs, and says in one line how that ended.

    A tracker that has not come to its end PATIENCE_SECONDS after the block is ended.
    """
    if tracker is None:
        yield
        return
    options = (str(run), str(after), str(PATIENCE_SECONDS))
    command = [sys.executable, "-P", "-m", "longmlm.training.tracker", *options]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, bufsize=0, start_new_session=True)
    except OSError as error:
        tqdm.write(_failure(tracker, str(error)))
        yield
        return
    told = threading.Thread(target=_tell, args=(process, tracker), daemon=True)
    told.start()
    assert process.stdin is not None
    try:
        yield
        with suppress(BrokenPipeError):
            process.stdin.write(DONE)
    finally:
        process.stdin.close()
        told.join(PATIENCE_SECONDS)
        process.kill()
        told.join()


def _tell(process: subprocess.Popen[bytes], tracker: str) -> None:
    assert process.stdout is not None
    with process.stdout as pipe:
        said, code = pipe.read().decode(errors="replace").strip(), process.wait()
    if code == -signal.SIGKILL:
        said = f"killed, or without an answer for {PATIENCE_SECONDS:.0f} s at the end"
    if code or said:
        tqdm.write(_failure(tracker, said or f"exit code {code}") if code else said)


def _failure(tracker: str, reason: str) -> str:
    return f"{tracker} failed ({reason}); the run does without it, {METRICS} has every figure"
