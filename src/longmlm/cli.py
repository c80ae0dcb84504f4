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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from longmlm.artifacts.artifact import version
from longmlm.config import parse
from longmlm.errors import RESUMES, RESUMES_FROM_CHECKPOINT, STARTS_OVER, ConfigError, naming
from longmlm.escaping import printable_output
from longmlm.processes import (
    LAUNCH_VARIABLES,
    SETTINGS_FROM_PARENT,
    has_parent,
    prints_errors,
    settings_from_parent,
    user_errors,
)
from longmlm.progress import hide_bars_off_terminal
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import Pipeline, PlanConfig, RunConfig
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig

STAGES: dict[str, type] = {
    "prepare": PrepareConfig,
    "extend": ExtendConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
    "release": ReleaseConfig,
    "checkpoints": CheckpointsConfig,
}
FEATURES: dict[str, type] = {  # commands that can be left out: the settings of each, beside which lies command.py
    "compare": resolve_name("longmlm.compare.settings:ComparedPipeline"),
    "downstream": resolve_name("longmlm.downstream.settings:DownstreamConfig"),
    "inspect": resolve_name("longmlm.inspect.settings:InspectConfig"),
    "predict": resolve_name("longmlm.predict.settings:PredictConfig"),
}
COMMANDS: dict[str, type] = {"plan": PlanConfig, "run": RunConfig, **FEATURES, **STAGES}
MODULES = {"plan": "planning.command", **{name: f"{name}.command" for name in FEATURES}}  # the others are in stages
RANKED = ("pretrain", "evaluate", "run", "compare")  # read what a launcher has set; the others are single processes
OTHERS = {
    "init": "Prints a pipeline file for a model and a corpus: longmlm init --model M --corpus '*.jsonl' --length 1536",
    "launch-config": "Prints the file of a launch or of a cluster's job: longmlm launch-config ddp > ddp.yaml",
    "pipelines": "Lists the shipped pipelines and overlays, whose names run takes in place of files",
    "schema": "Prints the JSON Schema with which editors complete and check pipeline files, or a command's files",
    "completion": "Prints a script that completes commands, options and pipelines in bash, zsh or fish",
}
PIPELINE = "pipeline"  # the files of run, plan and other commands
USAGES = {
    "launch-config": "NAME > FILE",
    "pipelines": "",
    "schema": f"[{PIPELINE}|COMMAND]",
    "completion": "bash|zsh|fish",
}
SYNONYMS = {  # what other tools call a command
    **dict.fromkeys(("train", "fit"), "pretrain"),
    **dict.fromkeys(("pack", "tokenize", "preprocess"), "prepare"),
    **dict.fromkeys(("eval", "test", "measure"), "evaluate"),
    **dict.fromkeys(("publish", "export", "push", "upload"), "release"),
    **dict.fromkeys(("finetune", "fine-tune"), "downstream"),
    **dict.fromkeys(("list", "ls"), "pipelines"),
    **dict.fromkeys(("show", "view", "look"), "inspect"),
    **dict.fromkeys(("fill-mask", "fill", "guess"), "predict"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("estimate", "cost"), "plan"),
}
RESUMING = dict.fromkeys(("prepare", "run", "compare", "downstream"), RESUMES) | {
    "pretrain": RESUMES_FROM_CHECKPOINT
}  # others start over
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
            if command not in RANKED:
                for name in LAUNCH_VARIABLES:
                    os.environ.pop(name, None)
            if command in OTHERS:
                _print(command, arguments)
                return
            if arguments == [SETTINGS_FROM_PARENT] and has_parent():
                config = settings_from_parent()
            else:
                config = parse(COMMANDS[command], arguments, f"longmlm {command}")
        run_command(command, config)


def run_command(command: str, config: Any) -> None:
    """Checks the files that the settings name, then imports and runs a command.

    A stop signal has ended the process so far; once the command runs, it lets it clean up.
    """
    output = getattr(config, "output", None) or getattr(config, "run", None) or "."  # which is written to
    with printable_output(), naming(Path(output)):
        if prints_errors():
            from longmlm.needs import check_inputs  # not needed for --help

            check_inputs(config)
        with _exit_on_closed_pipe() if command in ("inspect", "predict") else nullcontext():
            function = resolve_name(f"longmlm.{MODULES.get(command, f'stages.{command}')}:{command}")
            with exit_on_signal(RESUMING.get(command, STARTS_OVER)):
                function(config)


def _print(command: str, arguments: Sequence[str]) -> None:
    """Runs a command that has no settings of its own and prints text for a file or a shell."""
    if command != "init" and arguments[:1] in (["-h"], ["--help"]):
        print(f"usage: longmlm {command} {USAGES[command]}".rstrip(), OTHERS[command], sep="\n\n")
        if command == "launch-config":
            from longmlm.runtime.launch_command import launch_descriptions  # not needed by other commands

            print("", launch_descriptions(), sep="\n")
        return
    match command:
        case "init":
            from longmlm.pipeline_files import init  # it imports what --help of other commands does not need

            text = init(arguments)
            with printable_output():
                print(text)
        case "launch-config":
            from longmlm.runtime.launch_command import launch_file, launch_files

            if len(arguments) != 1:
                raise ConfigError(f"longmlm {command} takes one name: choose one of {', '.join(launch_files())}")
            print(launch_file(arguments[0]).rstrip("\n"))
        case "pipelines":
            from longmlm.pipeline_files import shipped_pipelines

            _only_argument(command, arguments, ())
            print(shipped_pipelines())
        case "schema":
            from longmlm.schema import schema_text

            name = _only_argument(command, arguments, (PIPELINE, *COMMANDS)) or PIPELINE
            print(schema_text(COMMANDS["run" if name == PIPELINE else name], name))
        case "completion":
            from longmlm.completion import SHELLS, completion_script

            if (shell := _only_argument(command, arguments, SHELLS)) is None:
                raise ConfigError(f"name a shell: {', '.join(f'longmlm completion {name}' for name in SHELLS)}")
            from longmlm.runtime.launch_command import launch_files

            words = {"schema": (PIPELINE, *COMMANDS), "completion": SHELLS, "launch-config": tuple(launch_files())}
            print(completion_script(shell, COMMANDS | {"init": Pipeline}, words, _descriptions()))


def _only_argument(command: str, arguments: Sequence[str], known: Collection[str]) -> str | None:
    """Returns the only argument of a command, or None; raises ConfigError for a second one or an unknown one."""
    if len(arguments) > min(1, len(known)):
        takes = "takes one argument" if known else "takes no arguments"
        raise ConfigError(f"longmlm {command} {takes}: remove {arguments[-1]}")
    if arguments and arguments[0] not in known:
        near = difflib.get_close_matches(arguments[0], known, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise ConfigError(f"longmlm {command} {arguments[0]}: unknown argument{hint}: choose one of {', '.join(known)}")
    return arguments[0] if arguments else None


def _descriptions() -> dict[str, str]:
    """Returns a description of each command in one line."""
    return {**{name: (kind.__doc__ or "").partition("\n")[0] for name, kind in COMMANDS.items()}, **OTHERS}


def _command(arguments: list[str]) -> str:
    """Removes and returns the command; without one, or for --help, prints the commands and exits; for --version too."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: longmlm COMMAND [FILE.toml ...] [--section.field value ...]", "", sep="\n")
        print(*(f"  {name:15}{text}" for name, text in _descriptions().items()), sep="\n")
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
    near = difflib.get_close_matches(command, [*COMMANDS, *OTHERS], n=1)
    meant = SYNONYMS.get(command) or next(iter(near), None)
    return f", did you mean {meant}?" if meant else ""


@contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Makes the process exit silently, without a traceback, when `| head` closes the pipe of a command that prints."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        sys.stdout.flush()
        signal.signal(signal.SIGPIPE, before)
