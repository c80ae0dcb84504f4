"""The command line: `longmlm COMMAND [FILE.toml ...] [--section.field value ...]`.

    longmlm run mine.toml --length 2048
    longmlm prepare mine.toml --runtime.num-workers 8

Stages import torch and transformers. They are imported after the settings are parsed and the files that the settings
name are checked, so that --help and errors appear at once.
"""

import difflib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from longmlm.artifacts.artifact import version
from longmlm.config import parse
from longmlm.errors import ConfigError, naming
from longmlm.escaping import printable_output
from longmlm.pipeline_files import pipeline_file, shipped_pipelines
from longmlm.processes import prints_errors, user_errors
from longmlm.progress import hide_bars_off_terminal
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import PlanConfig, ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig

Config = TypeVar("Config")
STAGES: dict[str, type] = {
    "prepare": PrepareConfig,
    "extend": ExtendConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
    "release": ReleaseConfig,
    "checkpoints": CheckpointsConfig,
}
WINGS: dict[str, type] = {  # commands that can be left out: the settings of each, beside which lies command.py
    "compare": resolve_name("longmlm.compare.settings:ComparedPipeline"),
    "downstream": resolve_name("longmlm.downstream.settings:DownstreamConfig"),
}
COMMANDS: dict[str, type] = {
    "plan": PlanConfig,
    "run": ResolvedPipeline,
    **WINGS,
    **STAGES,
}
OTHERS = {
    "init": "Prints a pipeline file for a model and a corpus: longmlm init --model M --corpus '*.jsonl' --length 1536",
    "pipelines": "Lists the shipped pipelines and overlays, whose names run takes in place of files",
}
SYNONYMS = {  # what other tools call a command
    **dict.fromkeys(("train", "fit"), "pretrain"),
    **dict.fromkeys(("pack", "tokenize", "preprocess"), "prepare"),
    **dict.fromkeys(("eval", "test", "measure"), "evaluate"),
    **dict.fromkeys(("publish", "export", "push", "upload"), "release"),
    **dict.fromkeys(("finetune", "fine-tune"), "downstream"),
    **dict.fromkeys(("list", "ls"), "pipelines"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("estimate", "cost"), "plan"),
}
# Environment variables that are read when torch is imported: the first is set unless one of them is already set.
CPU_DEFAULTS = (
    # An idle OpenMP thread sleeps after 100,000 spins; by default it spins longer and takes cores from other jobs.
    (("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"), "100000"),
    # oneDNN caches kernels for 128 shapes; for 1,024, its default, they take far more memory if rows differ in length.
    (("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"), "128"),
)


def main(stage: str | None = None) -> None:
    """Runs `stage`, or the command that the first argument names, with the settings of the other arguments."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # longmlm reports in one line what matters of its warnings
    for names, default in CPU_DEFAULTS:
        if not os.environ.keys() & set(names):
            os.environ[names[0]] = default
    arguments = sys.argv[1:]
    hide_bars_off_terminal()
    with user_errors():
        with _exit_on_closed_pipe():
            command = stage or _command(arguments)
            if command == "init":
                from longmlm.inputs import check_description  # not needed for --help

                text = pipeline_file(arguments, check_description)
                with printable_output():
                    print(text)
                return
            if command == "pipelines":
                _check_no_arguments(arguments)
                print(shipped_pipelines())
                return
            config = parse(COMMANDS[command], arguments, f"longmlm {command}")
        with printable_output(), naming(written_by(config)):
            if prints_errors():
                from longmlm.inputs import check_inputs  # not needed for --help

                check_inputs(config)
            run(command, config)


def _command(arguments: list[str]) -> str:
    """Removes and returns the command; without one, or for --help, prints the commands and exits; for --version too."""
    if not arguments or arguments[0] in ("-h", "--help"):
        descriptions = {**{name: (kind.__doc__ or "").partition("\n")[0] for name, kind in COMMANDS.items()}, **OTHERS}
        print("usage: longmlm COMMAND [FILE.toml ...] [--section.field value ...]", "", sep="\n")
        print(*(f"  {name:12}{text}" for name, text in descriptions.items()), sep="\n")
        print("\nFILE.toml describes a whole pipeline or one stage; longmlm COMMAND --help explains every setting")
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        print(f"longmlm {version()}")
        sys.exit(0)
    command = arguments.pop(0)
    if command not in COMMANDS and command not in OTHERS:
        raise ConfigError(
            f"unknown command {command}{_meant(command)}: choose one of {', '.join([*COMMANDS, *OTHERS])}"
        )
    return command


def _meant(command: str) -> str:
    """Returns the command that was probably meant, as a question; empty if there is none."""
    others = [SYNONYMS[command]] if command in SYNONYMS else []
    near = [*others, *difflib.get_close_matches(command, [*COMMANDS, *OTHERS], n=1)]
    return f", did you mean {near[0]}?" if near else ""


def _check_no_arguments(arguments: list[str]) -> None:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"longmlm pipelines takes no arguments: remove {arguments[0]}")


@contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Makes the process exit silently, without a traceback, when `--help | head` closes the pipe."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        sys.stdout.flush()
        signal.signal(signal.SIGPIPE, before)


def written_by(config: Any) -> Path:
    """Returns the folder that a command writes to."""
    return Path(getattr(config, "output", None) or getattr(config, "run", None) or ".")


def _start(stage: Callable[[Config], None], config: Config) -> None:
    """Runs a stage; a stop signal has ended the process so far, and from here on lets the stage clean up."""
    with exit_on_signal():
        stage(config)


def run(command: str, config: Any) -> None:
    """Runs a command with its settings."""
    match command, config:
        case "plan", PlanConfig():
            from longmlm.planning.command import plan

            _start(plan, config)
        case "run", ResolvedPipeline():
            from longmlm.stages.run import run_pipeline

            _start(run_pipeline, config)
        case wing, _ if isinstance(config, WINGS.get(wing, ())):
            _start(resolve_name(f"longmlm.{wing}.command:{wing}"), config)
        case _:
            _run_stage(command, config)


def _run_stage(command: str, config: Any) -> None:
    match command, config:
        case "prepare", PrepareConfig():
            from longmlm.stages.prepare import prepare

            _start(prepare, config)
        case "extend", ExtendConfig():
            from longmlm.stages.extend import extend

            _start(extend, config)
        case "pretrain", PretrainConfig():
            from longmlm.stages.pretrain import pretrain

            _start(pretrain, config)
        case "evaluate", EvaluateConfig():
            from longmlm.stages.evaluate import evaluate

            _start(evaluate, config)
        case "release", ReleaseConfig():
            from longmlm.stages.release import release

            _start(release, config)
        case "checkpoints", CheckpointsConfig():
            from longmlm.stages.checkpoints import checkpoints

            _start(checkpoints, config)
