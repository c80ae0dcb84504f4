"""The Python API for pipelines: `run` runs the stages of one, as the command `longmlm run` does."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.config import pipeline_of
from longmlm.errors import PipelineError, UserError, explained, naming
from longmlm.needs import check_inputs
from longmlm.reports.evaluation import finding
from longmlm.runtime.signals import StopSignalError
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.results import result_of
from longmlm.stages.run import run as run_stages


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The folders that the stages of a pipeline have written, and what the evaluation found, in sentences.

    A folder is None if the pipeline does not have its stage, or ends before it. `long_model` is the extended model
    before training, `release` the trained model that transformers loads. `is_recovered` says whether its accuracy
    has recovered (documentation: The method).
    """

    rows: Path | None
    long_model: Path | None
    run: Path | None
    evaluation: Path | None
    release: Path | None
    finding: str | None = None
    is_recovered: bool | None = None


def run(
    pipeline: str | Path | Mapping[str, Any],
    /,
    *overlays: str | Path | Mapping[str, Any],
    more_steps: int | None = None,
    **overrides: Any,
) -> PipelineResult:
    """Runs the stages of a pipeline that have no result yet, as `longmlm run` does, and returns what they have written.

    `pipeline` is the path of a TOML file, the name of a shipped pipeline such as "demo", or a mapping with the keys of
    such a file. Each of `overlays` is merged over it, and `overrides` over all of them: `length=1536`, or a table such
    as `pretrain={"recipe": {"num_steps": 100}}`. A dotted name is one setting: `**{"pretrain.recipe.num_steps": 100}`.
    Paths are relative to the working directory. `more_steps` adds so many steps to a run that has finished, as
    --more-steps of the command does.

    Each stage runs in its own process, which prints its progress. Ctrl-C stops it as it stops the command, and raises
    KeyboardInterrupt; SIGTERM takes effect once the stage has stopped. The same call resumes.

    Before anything runs, raises ConfigError for wrong or unknown settings, another UserError for an unusable input that
    they name or a folder that another process writes to, and ValueError for a `pipeline` that is neither a path nor a
    mapping. Raises PipelineError for a stage that fails, with the line that it printed; its error is the cause.

    >>> result = longmlm.run("demo", output="demo", until="prepare")
    [1/1] prepare: started, 0:00:00 so far
    ...
    >>> result.rows, result.long_model, result.release
    (PosixPath('demo/rows'), None, None)
    """
    for part in (pipeline, *overlays):
        if not isinstance(part, str | os.PathLike | Mapping) or not str(part):
            raise ValueError(f"a pipeline must be a path, a name or a mapping, not a {type(part).__name__}")
    try:
        config = pipeline_of([_plain(part) for part in (pipeline, *overlays)], _plain(overrides), _plain(more_steps))
        with naming(Path(config.output)):
            check_inputs(config)
            _run_stages(config)
    except UserError:
        raise
    except Exception as error:
        if (line := explained(error)) is None:
            raise
        raise UserError(line) from error
    return _result(config)


def _run_stages(config: RunConfig) -> None:
    """Runs the stages; a stop signal then has the effect that it has on Python."""
    try:
        run_stages(config)
    except StopSignalError as stop:
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        signal.raise_signal(signal.SIGTERM)  # which the first process of a container ignores
        raise PipelineError(f"{config.output}: stopped by SIGTERM: the same call resumes", 128 + stop.number) from None


def _plain(value: Any) -> Any:
    """Returns settings as the types that TOML has."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case os.PathLike():
            return os.fspath(value)
        case _:
            return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value  # of numpy


def _result(config: ResolvedPipeline) -> PipelineResult:
    folders = {name: result_of(stage) for name, stage in config.stages.items()}
    evaluation = read_evaluation(folders["evaluate"] / Evaluation.FILE) if "evaluate" in folders else None
    return PipelineResult(
        rows=folders.get("prepare"),
        long_model=folders.get("extend"),
        run=folders.get("pretrain"),
        evaluation=folders.get("evaluate"),
        release=folders.get("release"),
        finding=finding(evaluation) if evaluation else None,
        is_recovered=evaluation.is_recovered if evaluation else None,
    )
