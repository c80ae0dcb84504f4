"""The run command: runs each stage of a pipeline as a process, skips finished ones and resumes interrupted ones.

OUTPUT/
    pipeline.toml               the resolved settings, from which every stage is started
    done/STAGE.toml             the settings that a stage's result was made with, written when the stage has finished
    done/base_model.sha256      of the base model, if it is a folder
    rows/ long/ run/ evaluation/ release/
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from longmlm.artifacts.artifact import to_toml
from longmlm.artifacts.metrics import MetricsFile, TrainingMetrics
from longmlm.data.disk import Sizes, check_disk
from longmlm.errors import ArtifactError, DataError, ModelError
from longmlm.folders import write_text
from longmlm.hubs.models import CONFIG, config_of_model, read_architecture
from longmlm.model.families import num_parameters
from longmlm.planning.size import corpus_size
from longmlm.processes import exclusive_lock
from longmlm.progress import is_terminal
from longmlm.reports.outcome import summary
from longmlm.runtime.children import run_child
from longmlm.runtime.launch_command import launch_command, search_path
from longmlm.runtime.signals import stopped_by
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.publishing import secret_of
from longmlm.settings.results import result_of
from longmlm.staleness import (
    changed_settings,
    check_base_model,
    check_inputs,
    check_results,
    forget_stages_after,
    is_done,
    is_made,
    is_trained,
    record_done,
)
from longmlm.temporary import check_own_file
from longmlm.training.run_folder import list_checkpoints

PIPELINE, HEADER = "pipeline.toml", "# longmlm run pipeline.toml\n"
USER_ERROR = 2  # exit code of a stage whose settings or data are wrong
STOPPED = 143  # exit code of a stage that SIGTERM stopped


def run_pipeline(config: ResolvedPipeline) -> None:
    """Runs the stages in order and prints the accuracies reached; exits with the code of a stage that fails.

    Raises FolderError when a result was made with other settings, or
    another process writes to the output folder, and DataError when the corpus or the terms have changed.
    """
    output, started = Path(config.output), time.monotonic()
    with exclusive_lock(output):
        check_own_file(output / PIPELINE, HEADER)
        check_results(config)
        check_inputs(config)
        check_base_model(config)
        check_space(config)
        write_text(output / PIPELINE, f"{HEADER}{to_toml(config)}")
        for number, (name, stage) in enumerate(config.stages.items(), start=1):
            label = f"[{number}/{len(config.stages)}] {name}:"
            ended = "already done"
            if not is_done(config, name):
                if not result_of(stage).exists():
                    forget_stages_after(config, name)
                since = time.monotonic()
                print(f"{label} started, {_duration(since - started)} so far", flush=True)
                run_stage(config, name, label)
                ended = f"finished in {_duration(time.monotonic() - since)}"
                record_done(config, name)
            elif changed_settings(config, name) is None:  # made by a command of its own
                record_done(config, name)
            print(f"{label} {ended}, {result_of(stage)}", flush=True)
        print(summary(config))


def check_space(config: ResolvedPipeline) -> None:
    """Raises FolderError if the results that are still to be made take more than is free on their disk."""
    if missing := [name for name in config.stages if not is_made(config, name)]:
        with suppress(ModelError, DataError):  # the stage that reads the model or the text reports it
            sizes = planned_sizes(config)
            check_disk(config, missing, sizes)


def planned_sizes(config: ResolvedPipeline) -> Sizes:
    """Returns what the sizes of the results follow from, as far as known without loading the model or all text."""
    num_tokens = 0 if result_of(config.prepare).exists() else corpus_size(config.prepare.recipe.sources).num_tokens
    model = planned_config(config) or SimpleNamespace(model_type="")
    return Sizes(num_parameters(model, config.length) or 0, getattr(model, "vocab_size", 0), num_tokens)


def planned_config(config: ResolvedPipeline) -> SimpleNamespace | None:
    """Returns the config of the model that is trained: of its newest checkpoint, else of the long or the base model."""
    start, extend = config.pretrain.start, config.extend
    made = [*reversed(list_checkpoints(result_of(config.pretrain))), *([result_of(extend)] if extend else [])]
    if folder := next((folder for folder in made if (folder / CONFIG).is_file()), None):
        return config_of_model(str(folder), needs_weights=False)
    if extend:
        return config_of_model(extend.base, extend.revision, needs_weights=False)
    if start.checkpoint is None:
        return SimpleNamespace(**read_architecture(str(start.architecture)))
    folder = next(reversed(list_checkpoints(Path(start.checkpoint))), None)  # of another run
    return config_of_model(str(folder or start.checkpoint), start.revision, needs_weights=False)


def run_stage(config: ResolvedPipeline, name: str, label: str) -> None:
    """Runs a stage to its end; exits with its code if it fails, and with 128 + the signal that stopped it."""
    command = [sys.executable, "-P", "-m", "longmlm", name]  # -P: no module comes from the current folder
    if name == "pretrain" and config.launch is not None:
        command = [*launch_command(config.launch), "-m", "longmlm.stages.pretrain"]
    environment = {**os.environ, "PATH": search_path(), **secret_of(config.stages[name])}
    lines = time_left_lines(config, name, label)
    code, signal_name = run_child([*command, str(Path(config.output) / PIPELINE)], environment, lines)
    if signal_name:
        print(f"{label} {stopped_by(signal_name)}: the same command resumes from there", file=sys.stderr)
        sys.exit(128 + signal.Signals[signal_name])
    if code == 0 and name == "pretrain" and not is_trained(config.pretrain):
        print(f"{label} ended before its last evaluation: the same command resumes from there", file=sys.stderr)
        sys.exit(STOPPED)
    if code:
        first = "fix that, then " if code == USER_ERROR else ""
        print(f"{label} failed (exit code {code}): {first}the same command resumes from this stage", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def time_left_lines(config: ResolvedPipeline, name: str, label: str) -> Iterator[str]:
    """Yields an estimate of the training time left once the speed is known, and empty lines before that.

    Nothing on a terminal, where the stage draws a bar with the time left.
    """
    if name != "pretrain" or is_terminal():
        return
    num_steps, run = config.pretrain.recipe.num_steps, Path(config.pretrain.run)
    if not _training_lines(run):
        yield f"{label} the time left will be known once the first steps are logged"
    while not (lines := _training_lines(run)):
        yield ""
    tokens_left, speed = lines[-1].tokens / lines[-1].step * (num_steps - lines[-1].step), lines[-1].tokens_per_second
    yield f"{label} about {_duration(tokens_left / speed)} left at {speed:,.0f} tokens/s, without evaluations"


def _training_lines(run: Path) -> list[TrainingMetrics]:
    with suppress(ArtifactError):  # training reports it
        return [line for line in MetricsFile(run).lines() if isinstance(line, TrainingMetrics)]
    return []


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
