"""A pipeline whose stages all have their results, and stages that are not run but leave theirs."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.config import parse
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.results import result_of
from longmlm.stages import run
from longmlm.staleness import REPLACING
from longmlm.training.run_folder import newest_state
from tests.support.once import ground, once
from tests.support.results import write_result, write_results, write_run
from tests.support.tiny import tiny_folder


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text and the results of a pipeline."""
    return once(ground(tmp_path_factory) / "project", make_project)


def make_project(folder: Path) -> None:
    folder.mkdir()
    with contextlib.chdir(folder):
        tiny_folder(Path("base"))
        write_text(10)
        write_results(settings())


@pytest.fixture
def folder(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline's output folder in which every stage has its result."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def write_text(num_documents: int) -> None:
    lines = [json.dumps({"text": f"Text number {number}."}) for number in range(num_documents)]
    Path("text.jsonl").write_text("\n".join(lines), encoding="utf-8")


def settings(*options: str) -> RunConfig:
    base = ("--model", "base", "--corpus", "text.jsonl", "--length", "40", "--output", "out")
    own = ("--prepare.recipe.held-out-fraction", "0.4", "--extend.recipe.initialisation", "fitted")
    return parse(RunConfig, [*base, *own, *options])


def add_steps(config: ResolvedPipeline, more_steps: int | None) -> None:
    """Writes what training leaves that adds steps to a run, or resumes them."""
    saved = newest_state(result_of(config.pretrain))
    added = saved.continuations
    if more_steps and saved.is_finished(stop_when_recovered=False):
        added = saved.with_added_steps(more_steps, stop_when_recovered=False)
    write_run(config, added[-1].last_step, added)
    held_out = read_evaluation(Path(config.evaluate.output) / Evaluation.FILE).measured["long_after"]
    line = EvaluationMetrics(step=added[-1].last_step, tokens=0, held_out=held_out, base_chunks=40.0)
    MetricsFile(result_of(config.pretrain)).append(line)


def remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that were started, whose results are then written."""
    names: list[str] = []

    def run_stage(config: ResolvedPipeline, name: str, _label: str, more_steps: int | None) -> None:
        names.append(name if more_steps is None else f"{name} --more-steps {more_steps}")
        if name == "pretrain" and result_of(config.pretrain).exists():
            add_steps(config, more_steps)
        if name in REPLACING:
            shutil.rmtree(result_of(config.stages[name]), ignore_errors=True)
        if not result_of(config.stages[name]).exists():
            write_result(config, name)

    monkeypatch.setattr(run, "run_stage", run_stage)
    monkeypatch.setattr(run, "summary", lambda _: "")
    return names
