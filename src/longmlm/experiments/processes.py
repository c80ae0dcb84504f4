"""Runs the trials of a command as processes: finished trials are skipped, interrupted ones resumed.

FOLDER/
    record.json         hashes of all that the result depends on, and whether the trial has finished
    trial.toml, ...     the files that it is started with
    log.txt             what its process printed
FOLDER.earlier/
    the last finished trial with other settings or inputs

    trials = Trials(num_planned=2)
    for trial in planned:
        outcome = trials.run(trial)
        if not outcome.error: ...       # read its result, report on all trials so far
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import Artifact
from longmlm.errors import ArtifactError, TrainingError
from longmlm.escaping import single_line
from longmlm.folders import write_text
from longmlm.runtime.children import run_child
from longmlm.temporary import move_aside, remove_with

Content = TypeVar("Content", bound=Artifact)

TRIAL, LOG = "trial.toml", "log.txt"  # in the folder of a trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A trial to run: its name in words, its folder, and the Python module that runs it as a process.

    `key` has a SHA-256 for each part of what the result depends on; the names of the parts complete the sentence "it
    starts over: other ...", such as "settings of pretrain" or "rows". `files` are written into the folder before it
    starts. `training` and `result` are paths in the folder: the first exists once training has begun, the second once
    the trial has finished; a process that is started again after that returns at once. `missing` says why a trial with
    the same key has to start over all the same, such as "its weights are gone"; empty if nothing is missing.
    """

    name: str
    folder: Path
    key: dict[str, str]
    files: dict[str, str]
    module: str
    arguments: tuple[str, ...]
    training: str
    result: str
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord(Artifact):
    """record.json in a trial's folder: its key, as in PlannedTrial, and whether it has finished."""

    FILE: ClassVar[str] = "record.json"

    format: int = 2
    key: dict[str, str]
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trial: how it is announced, whether it had finished before, and its error, if it failed."""

    label: str
    was_finished: bool
    error: str = ""


class Trials:
    """Runs the trials of a command one after another; `num_planned` are expected in all."""

    def __init__(self, num_planned: int) -> None:
        self.num_planned = num_planned
        self.numbers: dict[Path, int] = {}

    def run(self, trial: PlannedTrial) -> Outcome:
        """Runs a trial unless it has finished, and reports a failure; exits if a signal stops it.

        If the folder holds a trial with another key, it is moved aside if that trial had finished, else removed.

        Raises TrainingError if the very first trial fails before training: the others would fail as well.
        """
        number = self.numbers.setdefault(trial.folder, len(self.numbers) + 1)
        label = f"[{number}/{self.num_planned}] {trial.name}"
        clear_unless_same(trial, label)
        if has_finished(trial):
            return Outcome(label, was_finished=True)
        error, log = attempt(trial, label), trial.folder / LOG
        if error and number == 1 and not (trial.folder / trial.training).exists():
            raise TrainingError(f"{trial.name} failed: {error}; its output is in {log}")
        if error:
            print(f"{label} failed: {error}; its output is in {log}", flush=True)
        return Outcome(label, was_finished=False, error=error)


def has_finished(trial: PlannedTrial) -> bool:
    """Returns whether the folder holds the result of this very trial; raises ArtifactError as `read_record` does."""
    record = read_record(trial.folder)
    is_same = record is not None and not trial.missing and trial.key.items() <= record.key.items()
    return is_same and record.is_finished and (trial.folder / trial.result).is_file()


def clear_unless_same(trial: PlannedTrial, label: str) -> None:
    """Moves the folder of a finished trial with another key aside, and removes that of any other."""
    record, names, folder = read_record(trial.folder), (TrialRecord.FILE, *trial.files), trial.folder
    changed = changed_parts(trial, record) if record else []
    if not folder.exists() or (record and not changed and not trial.missing):
        return
    reason = f"other {' and '.join(changed)}" if changed else trial.missing if record else "it has no record"
    if record.is_finished if record else (folder / trial.result).is_file():
        reason += f"; its earlier result is now in {move_aside(folder, names)}"
    else:
        remove_with(folder, names)
    print(f"{label} starts over: {reason}", flush=True)


def read_record(folder: Path) -> TrialRecord | None:
    """Returns the record of a trial, None if it has none; raises ArtifactError, with the remedy, for a damaged one."""
    return read_from_trial(TrialRecord, folder) if (folder / TrialRecord.FILE).is_file() else None


def read_from_trial(kind: type[Content], folder: Path) -> Content:
    """Returns a file of a trial; raises ArtifactError, with the remedy, if it cannot be read."""
    try:
        return artifact.read(kind, folder / kind.FILE)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; to run the trial again, move {folder} away") from error


def changed_parts(trial: PlannedTrial, record: TrialRecord) -> list[str]:
    """Returns the parts of the key that differ; one that is new, such as a further stage, is still to be run."""
    return [part for part, sha256 in trial.key.items() if record.key.get(part, sha256) != sha256]


def attempt(trial: PlannedTrial, label: str) -> str:
    """Runs a trial to its end; returns its error if it fails, else an empty text; exits if a signal stops it."""
    folder = trial.folder
    print(f"{label} {'resumes' if (folder / trial.training).exists() else 'starts'}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    record = TrialRecord(key=trial.key)
    artifact.write(folder / TrialRecord.FILE, record)
    for name, content in trial.files.items():
        write_text(folder / name, content)
    if error := run_module(trial.module, trial.arguments, folder / LOG, label):
        return error
    if not (folder / trial.result).is_file():
        return f"it wrote no {trial.result}"
    artifact.write(folder / TrialRecord.FILE, replace(record, is_finished=True))
    return ""


def run_module(module: str, arguments: Sequence[str], log: Path, label: str) -> str:
    """Runs a Python module as a process; returns its error if it fails, else an empty text; exits if a signal stops it.

    Its output is added to the log.
    """
    start = log.stat().st_size if log.is_file() else 0
    command = [sys.executable, "-P", "-m", module, *arguments]  # -P: no module comes from the current folder
    code, signal_name, *_ = run_child(command, os.environ, log=log, answer=single_line(f"{label} stopping"))
    if signal_name:
        print(f"{label} stopped by {signal_name}: run the same command again to resume", file=sys.stderr)
        sys.exit(128 + signal.Signals[signal_name])
    return error_in(log, start, code) if code else ""


def error_in(log: Path, start: int, code: int) -> str:
    """Returns the error that a log has after `start` bytes: longmlm's own, any other, or else why the process ended."""
    lines = log.read_bytes()[start:].decode("utf-8", errors="replace").strip().splitlines() or ["no output"]
    errors = [line for line in lines if "error:" in line.lower()]
    own = [said for line in errors if line.lower().startswith("error:") and (said := line[len("error:") :].strip())]
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and not own:
        return "it was killed by SIGKILL, as it is when memory runs out"
    return (own or errors or lines[-1:])[0].strip()
