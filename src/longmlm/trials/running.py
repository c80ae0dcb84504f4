"""Runs trials as processes, each in its own folder, and reports what they measured after every one.

OUTPUT/compare/trials/ARM/VALUES/seed-42/
    record.json             what the trial is made with, how long it took, whether it has finished
    trial.toml, log.txt     its pipeline, and what longmlm run printed
    run/ evaluation/ ...    what longmlm run wrote; weights are removed once the trial has finished
.../seed-42.earlier/
    the last finished trial with other settings, rows or base model
"""

import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import present
from longmlm.artifacts.comparison import Comparison
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import read_provenance
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.artifacts.run import RunSummary
from longmlm.artifacts.trials import FailedTrial, Trial, TrialRecord, accuracy_of
from longmlm.errors import TrainingError, counted
from longmlm.escaping import single_line
from longmlm.folders import MANIFEST, write_text
from longmlm.hubs.models import local_model_sha256
from longmlm.inputs import check_inputs
from longmlm.reports.comparison import write_comparison
from longmlm.reports.pages import made_with
from longmlm.runtime.children import run_child
from longmlm.settings.compare import ComparedPipeline, budget_minutes
from longmlm.settings.publishing import without_secrets
from longmlm.settings.results import result_of
from longmlm.settings.tables import without_empty_tables
from longmlm.staleness import check_text
from longmlm.temporary import move_aside, remove_inside, remove_with
from longmlm.training.run_folder import CHECKPOINTS
from longmlm.trials.planned import FOLDER, LOG, TRIAL, PlannedTrial

WEIGHTS = ("long", f"run/{CHECKPOINTS}")
RECORDS = (TrialRecord.FILE, TRIAL)  # a folder with one of them is a trial's


class Trials:
    """The trials of a comparison so far."""

    def __init__(self, config: ComparedPipeline) -> None:
        self.config = config
        self.finished: list[Trial] = []
        self.probes: list[Trial] = []
        self.failed: list[FailedTrial] = []
        self.num_not_started = 0

    def run(self, planned: Sequence[PlannedTrial], num_trials: int) -> list[Trial]:
        """Returns what those of the trials measured that ran and did not fail; `num_trials` are expected in all.

        Before any trial starts, raises the error of the first setting of a trial that cannot be used. Raises
        TrainingError if the very first trial fails before training.
        """
        results = []
        for one in planned:
            if not is_finished(one):
                check_inputs(one.pipeline)
        for config in {one.pipeline.prepare.output: one.pipeline.prepare for one in planned}.values():
            if (result_of(config) / MANIFEST).is_file():
                check_text(config)
        if not all(map(rows_sha256, planned)):  # whether a finished trial has the rows is known once they are packed
            planned = sorted(planned, key=is_finished)
        for index, one in enumerate(planned):
            if not (is_finished(one) or self.has_time()):
                num_done = counted(len(self.finished) + len(self.probes) + len(self.failed), "trial")
                self.num_not_started += len(planned) - index
                left = counted(len(planned) - index, "trial")
                print(f"the budget of {self.config.budget} is spent after {num_done}: {left} not started", flush=True)
                break
            number = len(self.finished) + len(self.probes) + len(self.failed) + 1
            label = f"[{number}/{num_trials}] {one.name}"
            result = run_trial(one, self.config.compare.keep_weights, label)
            if isinstance(result, FailedTrial):
                if number == 1 and not (one.folder / "run").exists():
                    raise TrainingError(f"{result.description}; its output is in {one.folder / LOG}")
                self.failed.append(result)
                print(f"{label} failed: {result.reason}; its output is in {one.folder / LOG}", flush=True)
            else:
                results.append(result)
                self.finished.append(result)
                before, after = accuracy_of(result.before), accuracy_of(result.after)
                print(f"{label}: {before:.2f} % before training, {after:.2f} % after", flush=True)
            self.write()
        return results

    def has_time(self) -> bool:
        """Returns whether the budget, if there is one, has time for at least half of another trial."""
        if self.config.budget is None or not (alike := self.finished or self.probes):
            return True
        spent = sum(trial.seconds for trial in (*self.probes, *self.finished, *self.failed))
        left = 60 * budget_minutes(self.config.budget) - spent
        return left >= statistics.median(trial.seconds for trial in alike) / 2

    def write(self) -> Comparison:
        """Writes comparison.json, the charts and the page, once there is an arm to show; returns the comparison."""
        config, compared = self.config, self.config.compare
        comparison = Comparison(
            model=config.model or "",
            row_length=config.length,
            baseline=compared.reference,
            control=compared.control,
            budget=config.budget,
            trials=tuple(self.finished),
            probes=tuple(self.probes),
            failed=tuple(self.failed),
            num_not_started=self.num_not_started,
        )
        if comparison.arms():
            settings = {**without_empty_tables(asdict(compared)), "arms": compared.arms}  # an arm may set nothing
            given = present({"budget": config.budget, **without_empty_tables(config.tables), "compare": settings})
            write_comparison(comparison, Path(config.output) / FOLDER, made_with("compare", given))
        return comparison


def run_trial(planned: PlannedTrial, keep_weights: bool, label: str) -> Trial | FailedTrial:
    """Runs a trial unless it has finished; returns what it measured, or why it failed; exits if a signal stops it.

    What the folder holds of a trial with other settings is moved aside or removed first.
    """
    record = resumable(planned, label)
    if record.is_finished:
        print(f"{label} finished before", flush=True)
    elif reason := attempt(planned, record, label):
        seconds = artifact.read(TrialRecord, planned.folder / TrialRecord.FILE).seconds
        return FailedTrial(arm=planned.arm, seed=planned.seed, values=planned.values, reason=reason, seconds=seconds)
    for name in () if keep_weights else WEIGHTS:
        remove_inside(planned.folder, name)
    return measured_trial(planned)


def is_finished(planned: PlannedTrial) -> bool:
    """Returns whether the trial's folder holds the record of this very trial, which ran to its end."""
    file = planned.folder / TrialRecord.FILE
    return file.is_file() and is_result_of(planned, artifact.read(TrialRecord, file))


def is_result_of(planned: PlannedTrial, record: TrialRecord) -> bool:
    """Returns whether the record is that of a finished trial with these settings, on these inputs."""
    has_stages = planned.stages.items() <= record.stages.items()
    return record.is_finished and has_stages and not changed_inputs(planned, record)


def resumable(planned: PlannedTrial, label: str) -> TrialRecord:
    """Returns the record of the trial so far: a finished one, one to go on with, or a new one in an empty folder.

    What the folder holds of a trial that cannot go on is moved aside if that had finished, and removed otherwise.
    """
    folder, stages = planned.folder, planned.stages
    if not folder.exists():
        return TrialRecord(stages=stages)
    file, record, reason = folder / TrialRecord.FILE, TrialRecord(stages=stages), "it has no record"
    if file.is_file():
        record = artifact.read(TrialRecord, file)
        changed = [name for name in stages if record.stages.get(name, stages[name]) != stages[name]]
        others = changed_inputs(planned, record)
        if is_result_of(planned, record):
            return record
        has_weights = not record.is_finished or (folder / "run" / CHECKPOINTS).is_dir()
        if has_weights and not changed and not others:
            seconds = record.seconds + seconds_lost(record, folder / LOG)
            return replace(record, stages=stages, seconds=seconds, attempt_started=None, is_finished=False)
        reason = f"other settings of {', '.join(changed)}" if changed else "its weights, which evaluate needs, are gone"
        reason = f"other {' and '.join(others)}" if others else reason
    if record.is_finished:
        reason += f"; its earlier result is now in {move_aside(folder, RECORDS)}"
    else:
        remove_with(folder, RECORDS)
    print(f"{label} starts anew: {reason}", flush=True)
    return TrialRecord(stages=stages)


def changed_inputs(planned: PlannedTrial, record: TrialRecord) -> list[str]:
    """Returns which inputs are not those that the trial read, as far as both are known."""
    pairs = {
        "rows": (record.rows_sha256, rows_sha256(planned)),
        "base model": (record.model_sha256, base_sha256(planned)),
    }
    return [name for name, (then, now) in pairs.items() if then and now and then != now]


def rows_sha256(planned: PlannedTrial) -> str:
    """Returns the hash of the trial's rows; empty if they are not packed yet."""
    folder = Path(planned.pipeline.prepare.output)
    return read_rows_manifest(folder).sha256 if (folder / MANIFEST).is_file() else ""


def base_sha256(planned: PlannedTrial) -> str:
    """Returns the hash of a base model in a folder, else an empty text."""
    pipeline = planned.pipeline
    return local_model_sha256(pipeline.extend.base if pipeline.extend else pipeline.pretrain.start.checkpoint)


def seconds_lost(record: TrialRecord, log: Path) -> float:
    """Returns how long an attempt took that was killed: until its last line of output."""
    if record.attempt_started is None or not log.is_file():
        return 0.0
    return max(0.0, log.stat().st_mtime - record.attempt_started)


def attempt(planned: PlannedTrial, record: TrialRecord, label: str) -> str:
    """Runs a trial to its end, and records how long it took; returns the error if it fails, else an empty text.

    Rows that do not exist yet are packed first; that time is not the trial's.
    """
    folder = planned.folder
    print(f"{label} {'resumes' if record.seconds else 'starts'}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    artifact.write(folder / TrialRecord.FILE, record)
    write_text(folder / TRIAL, tomli_w.dumps(without_secrets(planned.tables)))
    if not rows_sha256(planned) and (reason := run_longmlm(folder, label, "--until", "prepare")):
        return reason
    record = replace(record, rows_sha256=rows_sha256(planned), model_sha256=base_sha256(planned) or record.model_sha256)
    artifact.write(folder / TrialRecord.FILE, replace(record, attempt_started=time.time()))
    since, reason = time.monotonic(), "it was stopped"
    try:
        reason = run_longmlm(folder, label)
    finally:
        seconds, base_positions = record.seconds + time.monotonic() - since, _base_positions(planned)
        record = replace(record, seconds=seconds, attempt_started=None, base_positions=base_positions)
        artifact.write(folder / TrialRecord.FILE, replace(record, is_finished=not reason))
    return reason


def run_longmlm(folder: Path, label: str, *options: str) -> str:
    """Runs the pipeline of a trial as longmlm run does; returns and exits as `run_module` does."""
    return run_module("longmlm", ["run", str(folder / TRIAL), *options], folder / LOG, label)


def run_module(module: str, arguments: Sequence[str], log: Path, label: str) -> str:
    """Runs a Python module as a process; returns its error if it fails, else an empty text; exits if a signal stops it.

    Its output is added to the log.
    """
    start = log.stat().st_size if log.is_file() else 0
    command = [sys.executable, "-P", "-m", module, *arguments]  # -P: no module comes from the current folder
    code, signal_name = run_child(command, os.environ, log=log, answer=single_line(f"{label} stopping"))
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


def measured_trial(planned: PlannedTrial) -> Trial:
    """Returns what a finished trial measured."""
    run, evaluation = planned.folder / "run", planned.folder / "evaluation" / Evaluation.FILE
    summary = artifact.read(RunSummary, run / RunSummary.FILE)
    record = artifact.read(TrialRecord, planned.folder / TrialRecord.FILE)
    pretrain = planned.pipeline.pretrain
    return Trial(
        arm=planned.arm,
        values=planned.values,
        seed=planned.seed,
        curve=tuple(MetricsFile(run).evaluations()),
        rows_sha256=record.rows_sha256 or rows_sha256(planned),
        base_positions=record.base_positions,
        held_out=pretrain.recipe.held_out,
        tokens_per_second=summary.train_tokens_per_second,
        training_seconds=summary.state.training_seconds,
        seconds=record.seconds,
        measured=read_evaluation(evaluation).measured if evaluation.is_file() else {},
    )


def _base_positions(planned: PlannedTrial) -> int | None:
    """Returns the positions of the model before its extension; None if it was not extended, or not yet."""
    extension = read_provenance(planned.folder / "long").extension
    return extension.base_positions if extension else None
