"""The run command: runs each stage of a pipeline as a process, skips finished ones and resumes interrupted ones.

OUTPUT/
    pipeline.toml                               the resolved settings, from which every stage is started
    rows/ long/ run/ evaluation/ release/       results, each of which records what it was made with
"""

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from huggingface_hub.constants import REPOCARD_NAME

from longmlm.artifacts.artifact import PAGE_FILE, to_toml
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import MetricsFile
from longmlm.data.disk import check_disk
from longmlm.data.notes import unread_notes
from longmlm.errors import RESUMES, RESUMES_FROM_CHECKPOINT, DataError, ModelError
from longmlm.folders import write_text
from longmlm.planning.size import planned_sizes
from longmlm.processes import LAUNCH_VARIABLES, exclusive_lock
from longmlm.reports.evaluation import finding
from longmlm.runtime.children import run_child
from longmlm.runtime.launch_command import launch_command, search_path
from longmlm.runtime.signals import stopped_by
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.publishing import secret_of
from longmlm.settings.results import result_of
from longmlm.staleness import absent_text, check_result, check_results, is_current, is_done, is_trained
from longmlm.temporary import check_own_file
from longmlm.training.run_folder import newest_state

PIPELINE, HEADER = "pipeline.toml", "# longmlm run pipeline.toml\n"
USER_ERROR = 2  # exit code of a stage whose settings or data are wrong
STOPPED = 143  # exit code of a stage that SIGTERM stopped


def run(config: RunConfig) -> None:
    """Runs the stages in order and prints the accuracies reached; exits with the code of a stage that fails.

    Raises what `check_results` does, and FolderError while another process writes to the output folder.
    """
    output, started = Path(config.output), time.monotonic()
    with exclusive_lock(output):
        check_own_file(output / PIPELINE, HEADER)
        check_results(config)
        check_space(config)
        write_text(output / PIPELINE, f"{HEADER}{to_toml(replace(config, more_steps=None))}")
        print(*(f"{note}\n" for note in unread_notes(config)), sep="", end="")
        if "pretrain" in config.stages:
            print(f"page of the training: {result_of(config.pretrain) / PAGE_FILE}", flush=True)
        adds_steps = config.more_steps is not None and not _are_steps_added(config)
        for number, (name, stage) in enumerate(config.stages.items(), start=1):
            label = f"[{number}/{len(config.stages)}] {name}:"
            ended, is_continued = "already done", adds_steps and name == "pretrain"
            if is_continued or not is_done(config, name):
                check_result(config, name)  # again, since an earlier stage may have made its input anew
                since = time.monotonic()
                print(f"{label} started, {_duration(since - started)} so far", flush=True)
                run_stage(config, name, label, *(["--more-steps", str(config.more_steps)] if is_continued else []))
                ended = f"finished in {_duration(time.monotonic() - since)}"
            notes = [note] if isinstance(stage, PrepareConfig) and (note := absent_text(stage)) else []
            print(f"{label} {ended}, {result_of(stage)}", *notes, sep="\n", flush=True)
        print(summary(config))


def _are_steps_added(config: RunConfig) -> bool:
    """Returns whether the steps were already added by an interrupted command, which this one then completes.

    That is so if the latest added steps are as many, and a later stage has not run yet. A release that was refused
    because of the accuracy does not count as such a stage, since it needs more steps.
    """
    saved = newest_state(Path(config.pretrain.run))
    if not (saved and saved.continuations and saved.continuations[-1].num_steps == config.more_steps):
        return False
    left = [name for name in config.stages if not is_current(config, name)]
    return is_trained(config.pretrain) and bool(left) and not (left == ["release"] and _refusals(config))


def _refusals(config: ResolvedPipeline) -> list[str]:
    """Returns the options without which the release stage refuses the accuracy in the evaluation."""
    evaluation, recipe = _evaluation(config), config.release.recipe
    if evaluation is None:
        return []
    refused = {
        "allow-unrecovered": evaluation.is_recovered is False and not recipe.allow_unrecovered,
        "allow-worse-short-texts": evaluation.is_worse_on_short_texts and not recipe.allow_worse_short_texts,
    }
    return [name for name, is_refused in refused.items() if is_refused]


def _evaluation(config: ResolvedPipeline) -> Evaluation | None:
    """Returns what the evaluate stage wrote; None if the pipeline ends before it."""
    if config.evaluate is None or "evaluate" not in config.stages:
        return None
    return read_evaluation(result_of(config.evaluate) / Evaluation.FILE)


def check_space(config: ResolvedPipeline) -> None:
    """Raises FolderError if the results that are still to be made take more than is free on their disk."""
    if missing := [name for name in config.stages if not is_current(config, name)]:
        with suppress(ModelError, DataError):  # the stage that reads the model or the text reports it
            check_disk(config, missing, planned_sizes(config))


def run_stage(config: ResolvedPipeline, name: str, label: str, *options: str) -> None:
    """Runs a stage to its end; exits with its code if it fails, and with 128 + the signal that stopped it."""
    command = [sys.executable, "-P", "-m", "longmlm", name]  # -P: no module comes from the current folder
    if name == "pretrain" and config.launch is not None:
        command = [*launch_command(config.launch), "-m", "longmlm.stages.pretrain"]
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    environment = {**inherited, "PATH": search_path(), **secret_of(config.stages[name])}
    code, signal_name = run_child([*command, str(Path(config.output) / PIPELINE), *options], environment)
    if signal_name:
        resumption = {"prepare": RESUMES, "pretrain": RESUMES_FROM_CHECKPOINT}
        resumption |= {"extend": RESUMES} if config.extend and config.extend.rows else {}
        what_follows = (
            f"{RESUMES} from there" if code == 0 else resumption.get(name, f"the same command starts {name} over")
        )
        stopped = "" if code == -signal.SIGKILL else f"{stopped_by(signal_name)}: "  # else it ended without saving
        print(f"{label} {stopped}{what_follows}", file=sys.stderr)
        sys.exit(128 + signal.Signals[signal_name])
    if code == 0 and name == "pretrain" and not is_trained(config.pretrain):
        print(f"{label} ended before its last evaluation: the same command resumes from there", file=sys.stderr)
        sys.exit(STOPPED)
    if code:
        ended, remedy = f"{label} failed (exit code {code})", "the same command resumes from this stage"
        if code == USER_ERROR and name == "release" and _refusals(config):
            print(ended, file=sys.stderr, flush=True)
            print(summary(config, is_released=False), flush=True)
        else:
            print(f"{ended}: {'fix that, then ' if code == USER_ERROR else ''}{remedy}", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def summary(config: ResolvedPipeline, is_released: bool = True) -> str:
    """Returns what was found in a sentence, the paths of the page and the release, and what to do next."""
    if evaluation := _evaluation(config):
        lines = [finding(evaluation), f"page: {result_of(config.stages['evaluate']) / PAGE_FILE}"]
    else:
        measured = [
            (line.step, line.held_out.whole.accuracy) for line in MetricsFile(result_of(config.pretrain)).evaluations()
        ]
        lines = [f"held-out accuracy at step {step}: {found:.2f} %" for step, found in measured if found is not None]
        lines = lines[:: max(1, len(lines) - 1)]  # before and after training
    released = [f"released: {result_of(config.release)}"] if is_released and "release" in config.stages else []
    return "\n".join([*lines, *released, *_next_steps(config, evaluation)])


def _next_steps(config: ResolvedPipeline, evaluation: Evaluation | None) -> list[str]:
    """Returns what to do next: train longer or release all the same, release, or publish."""
    pipeline = f"{config.output}/{PIPELINE}"
    refusals = _refusals(config)
    if evaluation is not None and (evaluation.is_recovered is False or refusals):
        more = max(1, config.pretrain.recipe.num_steps // 2)
        lines = [f"next: train longer, for example by {more:,} steps: longmlm run {pipeline} --more-steps {more}"]
        if "release" in config.stages and refusals:
            options = " ".join(f"--release.recipe.{name}" for name in refusals)
            lines.append(f"or release it all the same: longmlm run {pipeline} {options}")
        return lines
    if "release" not in config.stages:
        return ["next: to make a release, run the same pipeline without until"]
    if config.release.publish is None:
        card = result_of(config.release) / REPOCARD_NAME
        return [f"next: read {card}, then publish: longmlm release {pipeline} --publish hf:OWNER/NAME"]
    return []
