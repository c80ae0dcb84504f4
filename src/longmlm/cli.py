"""The command line: `longmlm STAGE [FILE.toml ...] [--section.field value ...]`.

    longmlm prepare mine.toml --runtime.num-workers 8

Stages import torch and transformers; they are imported after parsing, so that --help and errors appear at once.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from longmlm.config import parse, user_errors
from longmlm.errors import ConfigError
from longmlm.processes import exit_on_sigterm, hide_gpus
from longmlm.progress import hide_bars_off_terminal
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
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


def main(stage: str | None = None) -> None:
    """Runs `stage`, or the stage that the first argument names, with the settings of the other arguments."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # longmlm reports in one line what matters of its warnings
    hide_bars_off_terminal()
    with user_errors(), exit_on_sigterm():
        with _exit_on_closed_pipe():
            config = _settings(stage, sys.argv[1:])
        run(config)


def _settings(stage: str | None, arguments: list[str]) -> Any:
    """Returns the settings of a stage; without one, or for --help, prints the stages and exits."""
    if stage is None and (not arguments or arguments[0] in ("-h", "--help")):
        lines = (f"  {name:12}{kind.__doc__}" for name, kind in STAGES.items())
        print("usage: longmlm STAGE [FILE.toml ...] [--section.field value ...]", "", *lines, sep="\n")
        print("\nlongmlm STAGE [FILE.toml ...] --help explains every setting")
        sys.exit(0 if arguments else 2)
    stage = stage or arguments.pop(0)
    if stage not in STAGES:
        raise ConfigError(f"unknown stage {stage}: choose one of {', '.join(STAGES)}")
    return parse(STAGES[stage], arguments, f"longmlm {stage}")


@contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Makes the process exit silently, without a traceback, when `--help | head` closes the pipe."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        sys.stdout.flush()
        signal.signal(signal.SIGPIPE, before)


def run(config: Any) -> None:
    """Runs the stage that the settings belong to."""
    match config:
        case PrepareConfig():
            from longmlm.stages.prepare import prepare

            prepare(config)
        case ExtendConfig():
            from longmlm.stages.extend import extend

            extend(config)
        case PretrainConfig():
            from longmlm.stages.pretrain import pretrain

            pretrain(config)
        case EvaluateConfig():
            from longmlm.stages.evaluate import evaluate

            evaluate(config)
        case ReleaseConfig():
            if config.follow:
                hide_gpus()  # before torch is imported
            from longmlm.stages.release import release

            release(config)
        case CheckpointsConfig():
            from longmlm.stages.checkpoints import checkpoints

            checkpoints(config)
