"""Stands in for the processes of a comparison: each trial writes what a real one leaves, without training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.evaluation import Evaluation
from longmlm.artifacts.metrics import METRICS_FILE, EvaluationMetrics, MetricsFile
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.run import RunSummary, TrainState
from longmlm.compare import command, planned
from longmlm.compare.command import compare
from longmlm.compare.comparison import Comparison
from longmlm.compare.settings import ComparedPipeline
from longmlm.config import parse, read
from longmlm.folders import MANIFEST
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.results import result_settings
from tests.support.evaluations import FULL


def measured(accuracy: float) -> Measured:
    whole = Accuracy(accuracy, 0.5, 3.0, 100)
    return Measured(whole, (whole, whole), (), (50, 50), (round(accuracy / 2), 14))


def accuracy_after(pipeline: ResolvedPipeline) -> float:
    """Returns an accuracy that is best at a rate of 4e-4 and better for tile."""
    is_tile = pipeline.extend is not None and pipeline.extend.recipe.initialisation == "tile"
    return 30 + 4 * is_tile - abs(pipeline.pretrain.recipe.learning_rate / 1e-4 - 4)


def trained_with(pipeline: ResolvedPipeline) -> object:
    """Returns the settings that a run depends on."""
    return {name: result_settings(pipeline.stages[name]) for name in pipeline.stages if name in ("extend", "pretrain")}


class FakeRuns:
    """Runs a pipeline in no time; refuses changed settings as `longmlm run` does.

    `started` are the pipelines that were trained, `provenance` is written beside each long model. `failures`
    returns the error of a pipeline that fails, or nothing; the training that would start as number `stopped_at` is
    stopped by SIGTERM.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[ResolvedPipeline] = []
        self.rows = "of the text"
        self.provenance = Provenance()
        self.failures: Callable[[ResolvedPipeline], str] = lambda _: ""
        self.stopped_at: int | None = None
        monkeypatch.setattr("longmlm.experiments.processes.run_child", self.run_child)
        for name in ("check_inputs", "check_text"):  # the pipelines name no real model or text
            monkeypatch.setattr(command, name, lambda _: None)
        monkeypatch.setattr(planned, "read_rows_manifest", lambda _: SimpleNamespace(sha256=self.rows))
        monkeypatch.setattr(command, "write_comparison", self.write_record)  # the charts take a second

    @staticmethod
    def write_record(comparison: Comparison, folder: Path, made_by: str) -> None:
        (folder / "made_by.toml").write_text(made_by, encoding="utf-8")
        artifact.write(folder / Comparison.FILE, comparison)

    @property
    def names(self) -> list[str]:
        """The folders of the trials that were trained."""
        return [pipeline.output.partition("/trials/")[2] for pipeline in self.started]

    def run_child(
        self, command: Sequence[str], _environment: Mapping[str, str], log: Path, **_answer: str
    ) -> tuple[int, str]:
        pipeline = read(ResolvedPipeline, [Path(command[5])])
        made = Path(pipeline.output) / "run" / "made"
        if made.is_file() and made.read_text(encoding="utf-8") != repr(trained_with(pipeline)):
            return self.fail(log, "error: pretrain: run was made with other settings")
        rows = Path(pipeline.prepare.output) / MANIFEST
        if not rows.is_file():
            rows.parent.mkdir(parents=True, exist_ok=True)
            rows.touch()
        if "prepare" in command:
            return 0, ""
        if len(self.started) == self.stopped_at:
            (Path(pipeline.output) / "run").mkdir(parents=True)
            return 143, "SIGTERM"
        self.started.append(pipeline)
        if reason := self.failures(pipeline):
            return self.fail(log, reason)
        self.train(pipeline)
        return 0, ""

    def train(self, pipeline: ResolvedPipeline) -> None:
        """Writes what training leaves in the output folder."""
        folder, steps = Path(pipeline.output), pipeline.pretrain.recipe.num_steps
        for name in ("run/checkpoints", "long", "evaluation"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "long" / "model.safetensors").touch()
        artifact.write(folder / "long" / Provenance.FILE, self.provenance)
        (folder / "run" / "made").write_text(repr(trained_with(pipeline)), encoding="utf-8")
        (folder / "run" / METRICS_FILE).unlink(missing_ok=True)
        for step, accuracy in ((0, 10.0), (steps, accuracy_after(pipeline))):
            line = EvaluationMetrics(step=step, tokens=64 * step, held_out=measured(accuracy), base_chunks=40.0)
            MetricsFile(folder / "run").append(line)
        state = TrainState(step=steps, tokens=64 * steps)
        summary = RunSummary(state=state, train_tokens_per_second=128.0, num_processes=1, peak_memory_bytes=1)
        artifact.write(folder / "run" / RunSummary.FILE, summary)
        if pipeline.until == "evaluate":
            artifact.write(folder / "evaluation" / Evaluation.FILE, replace(FULL, measured={}, curve=()).signed())

    def fail(self, log: Path, reason: str) -> tuple[int, str]:
        """Writes an error into the log, among other lines."""
        with log.open("a", encoding="utf-8") as file:
            file.write(f"[1/1] starts\n{reason}\n[1/1] failed (exit code 2)\n")
        return 2, ""


def settings(*arguments: str) -> ComparedPipeline:
    return parse(ComparedPipeline, arguments)


def compared(*arguments: str) -> Comparison:
    """Runs a comparison, and returns its record."""
    config = settings(*arguments)
    compare(config)
    return artifact.read(Comparison, Path(config.output) / "compare" / Comparison.FILE)


def best_file(name: str = "out") -> ResolvedPipeline:
    """Returns the pipeline that a comparison recommends."""
    return parse(ResolvedPipeline, [f"{name}/compare/pipeline.toml"])
