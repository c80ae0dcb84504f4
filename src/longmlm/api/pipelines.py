"""The Python API for pipelines: `run` runs the stages of one, as the command `longmlm run` does."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from longmlm.artifacts.artifact import present
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.config import pipeline_of
from longmlm.errors import PipelineError, UserError, explained, naming
from longmlm.needs import check_inputs
from longmlm.processes import ERROR_FILE, end_with_parent
from longmlm.reports.evaluation import finding
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.results import result_of

COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "longmlm",
    "run",
    "/dev/stdin",
)  # -P: no module is imported from the current folder


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

    Each stage runs in its own process, which prints its progress. Ctrl-C stops them as it stops the command, and
    raises KeyboardInterrupt; the same call resumes.

    Before anything runs, raises ConfigError for wrong or unknown settings, another UserError for an unusable input that
    they name, and ValueError for a `pipeline` that is neither a path nor a mapping. Raises PipelineError for a stage
    that fails, with the line that it printed.

    >>> result = longmlm.run("demo", output="demo", until="prepare")
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
    except UserError:
        raise
    except Exception as error:
        if (line := explained(error)) is None:
            raise
        raise UserError(line) from error
    _execute(config)
    return _result(config)


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


def _execute(config: RunConfig) -> None:
    """Runs the command for these settings, which it reads from its standard input, since they may hold a password."""
    text = tomli_w.dumps(present(asdict(replace(config, more_steps=None))))
    options = [] if config.more_steps is None else ["--more-steps", str(config.more_steps)]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # the command's output follows what was printed before
    with _sigterm_at_end() as started, tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors.txt"
        with subprocess.Popen(
            [*COMMAND, *options],
            env={**os.environ, ERROR_FILE: str(errors)},
            stdin=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C reaches this process only, which passes it on
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        ) as child:
            started.append(child)
            assert child.stdin
            with suppress(BrokenPipeError), child.stdin as settings:
                settings.write(text)
            code = _wait(child)
        lines = errors.read_text(encoding="utf-8").splitlines() if errors.exists() else []
    if code:
        raise PipelineError(lines[0] if lines else _ending(config, code), code if code > 0 else 128 - code)


def _wait(child: subprocess.Popen[str]) -> int:
    """Returns the exit code of the command; passes each Ctrl-C on to it, and raises KeyboardInterrupt at its end."""
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt as error:
            interrupted = error
            child.send_signal(signal.SIGINT)
        except BaseException:  # raised by the caller's signal handler: Popen then waits for the command to end
            child.terminate()
            raise
    if interrupted:
        raise interrupted
    return code


@contextmanager
def _sigterm_at_end() -> Iterator[list[subprocess.Popen[str]]]:
    """Passes SIGTERM on to the commands that the block adds; it takes effect on this process after the block.

    If it took effect at once, a job or a container would end before training has saved. The caller's own handler stays.
    """
    started: list[subprocess.Popen[str]] = []
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        for child in started:
            child.terminate()

    is_main, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    if is_main:  # no other thread can set a handler
        signal.signal(signal.SIGTERM, pass_on if before == signal.SIG_DFL else before)
    try:
        yield started
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
    if received:
        signal.raise_signal(signal.SIGTERM)  # which the first process of a container ignores


def _ending(config: ResolvedPipeline, code: int) -> str:
    stopped = {128 + number: name for name, number in (("SIGTERM", signal.SIGTERM), ("SIGINT", signal.SIGINT))}
    if signal_name := stopped.get(code if code > 0 else 128 - code):
        return f"{config.output}: stopped by {signal_name}: the same call resumes"
    failed = f"a stage failed with exit code {code}; see its output above"
    return f"{config.output}: {failed}; the same call resumes from this stage"


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
