"""Command line: `longmlm STAGE FILE.toml ... --section.field value` parses the settings and runs the stage.

    longmlm prepare mine.toml --runtime.num-workers 8

A stage, with torch and transformers, is imported after parsing, so that --help and wrong settings are answered at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from longmlm.config import parse, user_errors
from longmlm.errors import ConfigError
from longmlm.processes import exit_on_sigterm, hide_gpus
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
    """Runs `stage`, or the stage that the first argument names."""
    arguments = sys.argv[1:]
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # what matters of its warnings, longmlm says in one line
    with user_errors(), exit_on_sigterm():
        if stage is None:
            stage, arguments = _stage_and_settings(arguments)
        run(parse(STAGES[stage], arguments, f"longmlm {stage}"))


def _stage_and_settings(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Returns the stage and the arguments after it; prints the stages and exits if there is none, or for --help."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = (f"  {name:12}{kind.__doc__}" for name, kind in STAGES.items())
        print("usage: longmlm STAGE [FILE.toml ...] [--section.field value ...]", "", *lines, sep="\n")
        print("\nlongmlm STAGE [FILE.toml ...] --help explains each setting")
        sys.exit(0 if arguments else 2)
    if arguments[0] not in STAGES:
        raise ConfigError(f"unknown stage {arguments[0]}: choose one of {', '.join(STAGES)}")
    return arguments[0], arguments[1:]


def run(config: Any) -> None:
    """Runs the stage to which the settings belong."""
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
