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
from longmlm.errors import (
    RESUMES,
    RESUMES_FROM_CHECKPOINT,
    USER_ERROR,
    DataError,
    ModelError,
    PipelineError,
)
from longmlm.escaping import single_line
from longmlm.folders import write_text
from longmlm.planning.size import planned_sizes
from longmlm.processes import LAUNCH_VARIABLES, exclusive_lock
from longmlm.reports.evaluation import finding
from longmlm.runtime.children import Ended, run_child, run_stage_process
from longmlm.runtime.launch_command import launch_command, search_path
from longmlm.runtime.signals import StopSignalError, stopped_by
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.results import result_of
from longmlm.staleness import absent_text, check_result, check_results, is_current, is_done, is_trained
from longmlm.temporary import check_own_file
from longmlm.training.run_folder import newest_state

PIPELINE, HEADER = "pipeline.toml", "# longmlm run pipeline.toml\n"
STOPPED = 143  # exit code of a stage that SIGTERM stopped


def run(config: RunConfig) -> None:
    """Runs the stages in order and prints the accuracies reached.

    Raises what `check_results` and `run_stage` do, and FolderError while another process writes to the output folder.
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
                run_stage(config, name, label, config.more_steps if is_continued else None)
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


def run_stage(config: ResolvedPipeline, name: str, label: str, more_steps: int | None = None) -> None:
    """Runs a stage in a process of its own, to its end, and says in a line how it ended if it did not succeed.

    Raises PipelineError, with its error and exit code, if it fails, and StopSignalError if a signal stops it.
    """
    ended = _run_process(config, name, more_steps)
    if ended.signal_name:
        print(f"{label} {_stopped(config, name, ended)}", file=sys.stderr, flush=True)
        raise StopSignalError(signal.Signals[ended.signal_name])
    code = ended.code if ended.code >= 0 else 128 - ended.code
    is_refused = code == USER_ERROR and name == "release" and bool(_refusals(config))
    if code:
        remedy = f"{'fix that, then ' if code == USER_ERROR else ''}the same command resumes from this stage"
        line = f"{label} failed (exit code {ended.code}){'' if is_refused else f': {remedy}'}"
    elif name == "pretrain" and not is_trained(config.pretrain):
        line, code = f"{label} ended before its last evaluation: the same command resumes from there", STOPPED
    else:
        return
    print(line, file=sys.stderr, flush=True)
    if is_refused:
        print(summary(config, is_released=False), flush=True)
    raise PipelineError(single_line(str(ended.error or line)), code) from ended.error


def _run_process(config: ResolvedPipeline, name: str, more_steps: int | None) -> Ended:
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    environment = {**inherited, "PATH": search_path()}
    if name == "pretrain" and config.launch is not None:
        file, options = f"{config.output}/{PIPELINE}", [] if more_steps is None else ["--more-steps", str(more_steps)]
        return run_child([*launch_command(config.launch), "-m", "longmlm.stages.pretrain", file, *options], environment)
    stage = config.stages[name]
    settings = replace(stage, more_steps=more_steps) if isinstance(stage, PretrainConfig) else stage
    return run_stage_process(name, settings, environment)


def _stopped(config: ResolvedPipeline, name: str, ended: Ended) -> str:
    """Returns which signal stopped a stage, unless it ended without saving, and what the same command does then."""
    resumption = {"prepare": RESUMES, "pretrain": RESUMES_FROM_CHECKPOINT}
    resumption |= {"extend": RESUMES} if config.extend and config.extend.rows else {}
    resumption |= {name: f"{RESUMES} from there"} if ended.code == 0 else {}
    resumes = resumption.get(name, f"the same command starts {name} over")
    return resumes if ended.code == -signal.SIGKILL else f"{stopped_by(ended.signal_name)}: {resumes}"


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
