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
from datetime import timedelta
from pathlib import Path

from longmlm.artifacts.artifact import to_toml
from longmlm.data.disk import check_disk
from longmlm.errors import DataError, ModelError
from longmlm.folders import write_text
from longmlm.planning.size import planned_sizes
from longmlm.processes import exclusive_lock
from longmlm.reports.evaluation import summary
from longmlm.runtime.children import run_child
from longmlm.runtime.launch_command import launch_command, search_path
from longmlm.runtime.signals import stopped_by
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.publishing import secret_of
from longmlm.settings.results import result_of
from longmlm.staleness import check_result, check_results, is_current, is_done, is_trained
from longmlm.temporary import check_own_file

PIPELINE, HEADER = "pipeline.toml", "# longmlm run pipeline.toml\n"
USER_ERROR = 2  # exit code of a stage whose settings or data are wrong
STOPPED = 143  # exit code of a stage that SIGTERM stopped


def run(config: ResolvedPipeline) -> None:
    """Runs the stages in order and prints the accuracies reached; exits with the code of a stage that fails.

    Raises what `check_results` does, and FolderError while another process writes to the output folder.
    """
    output, started = Path(config.output), time.monotonic()
    with exclusive_lock(output):
        check_own_file(output / PIPELINE, HEADER)
        check_results(config)
        check_space(config)
        write_text(output / PIPELINE, f"{HEADER}{to_toml(config)}")
        for number, (name, stage) in enumerate(config.stages.items(), start=1):
            label = f"[{number}/{len(config.stages)}] {name}:"
            ended = "already done"
            if not is_done(config, name):
                check_result(config, name)  # again, since an earlier stage may have made its input anew
                since = time.monotonic()
                print(f"{label} started, {_duration(since - started)} so far", flush=True)
                run_stage(config, name, label)
                ended = f"finished in {_duration(time.monotonic() - since)}"
            print(f"{label} {ended}, {result_of(stage)}", flush=True)
        print(summary(config))


def check_space(config: ResolvedPipeline) -> None:
    """Raises FolderError if the results that are still to be made take more than is free on their disk."""
    if missing := [name for name in config.stages if not is_current(config, name)]:
        with suppress(ModelError, DataError):  # the stage that reads the model or the text reports it
            check_disk(config, missing, planned_sizes(config))


def run_stage(config: ResolvedPipeline, name: str, label: str) -> None:
    """Runs a stage to its end; exits with its code if it fails, and with 128 + the signal that stopped it."""
    command = [sys.executable, "-P", "-m", "longmlm", name]  # -P: no module comes from the current folder
    if name == "pretrain" and config.launch is not None:
        command = [*launch_command(config.launch), "-m", "longmlm.stages.pretrain"]
    environment = {**os.environ, "PATH": search_path(), **secret_of(config.stages[name])}
    code, signal_name = run_child([*command, str(Path(config.output) / PIPELINE)], environment)
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


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
