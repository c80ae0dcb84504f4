"""The command line: `longmlm COMMAND [FILE.toml ...] [--section.field value ...]`.

    longmlm run mine.toml --length 2048
    longmlm prepare mine.toml --runtime.num-workers 8

Stages import torch and transformers. They are imported after the settings are parsed and the files that the settings
name are checked, so that --help and errors appear at once.
"""

import difflib
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import tomli_w

from longmlm.artifacts.artifact import version
from longmlm.config import parse
from longmlm.errors import ConfigError, naming
from longmlm.escaping import printable_output
from longmlm.options import explanations, sections
from longmlm.processes import prints_errors, user_errors
from longmlm.progress import hide_bars_off_terminal
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import Pipeline, PlanConfig, ResolvedPipeline, RunConfig, recommended
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.release import ReleaseConfig
from longmlm.settings.shipped import BUNDLED, PACKAGE, SHIPPED

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
    "inspect": resolve_name("longmlm.inspect.settings:InspectConfig"),
}
COMMANDS: dict[str, type] = {"plan": PlanConfig, "run": RunConfig, **WINGS, **STAGES}
MODULES = {"plan": "planning.command", **{wing: f"{wing}.command" for wing in WINGS}}  # the others are in stages
OTHERS = {
    "init": "Prints a pipeline file for a model and a corpus: longmlm init --model M --corpus '*.jsonl' --length 1536",
    "launch-config": "Prints the file of a launch or a cluster's job: longmlm launch-config ddp > ddp.yaml",
    "pipelines": "Lists the shipped pipelines and overlays, whose names run takes in place of files",
}
SYNONYMS = {  # what other tools call a command
    **dict.fromkeys(("train", "fit"), "pretrain"),
    **dict.fromkeys(("pack", "tokenize", "preprocess"), "prepare"),
    **dict.fromkeys(("eval", "test", "measure"), "evaluate"),
    **dict.fromkeys(("publish", "export", "push", "upload"), "release"),
    **dict.fromkeys(("finetune", "fine-tune"), "downstream"),
    **dict.fromkeys(("list", "ls"), "pipelines"),
    **dict.fromkeys(("show", "view", "look"), "inspect"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("estimate", "cost"), "plan"),
}
NOTE = (
    "# Recommended settings of the stages: remove the # to change one; `longmlm run FILE --help` explains the others."
)
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
            if command in ("pipelines", "launch-config"):
                print({"pipelines": shipped_pipelines, "launch-config": launch_config}[command](arguments))
                return
            config = parse(COMMANDS[command], arguments, f"longmlm {command}")
        output = getattr(config, "output", None) or getattr(config, "run", None) or "."  # which is written to
        with printable_output(), naming(Path(output)):
            if prints_errors():
                from longmlm.inputs import check_inputs  # not needed for --help

                check_inputs(config)
            with _exit_on_closed_pipe() if command == "inspect" else nullcontext():
                _run(command, config)


def _command(arguments: list[str]) -> str:
    """Removes and returns the command; without one, or for --help, prints the commands and exits; for --version too."""
    if not arguments or arguments[0] in ("-h", "--help"):
        descriptions = {**{name: (kind.__doc__ or "").partition("\n")[0] for name, kind in COMMANDS.items()}, **OTHERS}
        print("usage: longmlm COMMAND [FILE.toml ...] [--section.field value ...]", "", sep="\n")
        print(*(f"  {name:15}{text}" for name, text in descriptions.items()), sep="\n")
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


def pipeline_file(arguments: Sequence[str], check: Callable[[Pipeline], None] = lambda _: None) -> str:
    """Returns a pipeline file with the base keys from the options; the recommended settings are commented out.

    The docstring of each setting stands above it. Raises ConfigError for invalid options; `check` may refuse
    what they describe.
    """
    base = parse(Pipeline, arguments, "longmlm init", {"output": "out/mine"})
    check(base)
    lines = [f"# {Pipeline.__doc__}", "# Run it with: longmlm run FILE"]
    for name, text in explanations(Pipeline).items():
        value = getattr(base, name)
        is_default = name not in ("corpus", "output") and value == Pipeline.__dataclass_fields__[name].default
        assignment = _assignment(name, "..." if value is None else value)
        lines += ["", f"# {text}", f"#{assignment}" if is_default else assignment]
    lines += ["", NOTE]
    kinds = {item.name: part for item in fields(ResolvedPipeline) for part in sections(item)}
    for stage, table in recommended(base, {}).items():
        lines += _tables(stage, kinds[stage], table)
    return "\n".join(lines)


def _tables(name: str, kind: type, table: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a table and its subtables, with every key commented out."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own:
        yield from ("", f"[{name}]")
    for key, value in own.items():
        yield from (f"# {explanations(kind)[key]}", f"#{_assignment(key, value)}")
    for item in fields(kind):
        if isinstance(table.get(item.name), dict):
            yield from _tables(f"{name}.{item.name}", next(sections(item)), table[item.name])


def _assignment(key: str, value: object) -> str:
    text = tomli_w.dumps({key: list(value) if isinstance(value, tuple) else value}).strip()
    return text.replace(f"{PACKAGE / 'bundled'}/", BUNDLED)


def launch_config(arguments: Sequence[str]) -> str:
    """Returns the file of the launch that the argument names, and for --help the names with what each is for.

    Raises ConfigError for another name, for none, and for several.
    """
    from longmlm.runtime.launch_command import launch_file, launch_files  # not needed by other commands

    if arguments and arguments[0] in ("-h", "--help"):
        lines = (f"  {name:20}{_first_comment(text)}" for name, text in launch_files().items())
        return "\n".join(["usage: longmlm launch-config NAME > FILE", "", *lines])
    if len(arguments) != 1:
        raise ConfigError(f"longmlm launch-config takes one name: {', '.join(launch_files())}")
    return launch_file(arguments[0]).rstrip("\n")


def _first_comment(text: str) -> str:
    """Returns the first sentence of a file's comment."""
    lines = [line.removeprefix("# ") for line in text.splitlines() if not line.startswith("#!")]
    return re.split(r"(?<=\w)[.:](?= |$)", " ".join(lines[:2]))[0]


def shipped_pipelines(arguments: Sequence[str] = ()) -> str:
    """Returns a line for each shipped pipeline and overlay: its name and the first line of its comment."""
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"longmlm pipelines takes no arguments: remove {arguments[0]}")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SHIPPED.glob("*.toml"))}
    lines = {name: f"  {name:20}{text.splitlines()[0].removeprefix('# ')}" for name, text in texts.items()}
    pipelines = [name for name, text in texts.items() if "output" in tomllib.loads(text)]
    overlays = [name for name in texts if name not in pipelines]
    parts = ["pipelines: longmlm run NAME", *(lines[name] for name in pipelines)]
    parts += ["overlays: longmlm run NAME OVERLAY", *(lines[name] for name in overlays)] if overlays else []
    return "\n".join(parts)


def _run(command: str, config: Any) -> None:
    """Imports and runs a command; a stop signal has ended the process so far, and now lets the command clean up."""
    function = resolve_name(f"longmlm.{MODULES.get(command, f'stages.{command}')}:{command}")
    with exit_on_signal():
        function(config)
