"""Trials of a comparison: which are planned, run and skipped, and how a budget is spent. No trial is really trained."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.comparison import Comparison
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.artifacts.run import RunSummary, TrainState
from longmlm.config import parse, read
from longmlm.errors import ConfigError, TrainingError
from longmlm.settings.compare import ComparedPipeline, budget_minutes
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.stages import compare as stage
from tests.support.prepare_settings import written

MINE = """
model = "owner/base"
corpus = ["docs.txt"]
length = 64
output = "out"
[pretrain.recipe]
num_steps = 100
[compare.arms.hierarchical]
[compare.arms.tile.extend.recipe]
initialisation = "tile"
"""
CONTROL = """
[compare]
control = "own-length"
[compare.arms.own-length]
length = 32
extension = false
"""
SEARCH = """
[compare]
seeds = [1, 2, 3]
[compare.search.pretrain.recipe]
learning_rate = [1e-4, 4e-4]
schedule = ["linear", "cosine"]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, "mine.toml", MINE)


def settings(*arguments: str) -> ComparedPipeline:
    return parse(ComparedPipeline, arguments)


def measured(accuracy: float) -> Measured:
    whole = Accuracy(accuracy, 0.5, 3.0, 100)
    return Measured(whole, (whole, whole), (), (50, 50), (round(accuracy / 2), 14))


def accuracy_after(pipeline: ResolvedPipeline) -> float:
    """Returns an accuracy that is best at a rate of 4e-4 and better for tile."""
    is_tile = pipeline.extend is not None and pipeline.extend.recipe.initialisation == "tile"
    return 30 + 4 * is_tile - abs(pipeline.pretrain.recipe.learning_rate / 1e-4 - 4)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ResolvedPipeline]:
    """Replaces each trial by a run folder with plausible metrics; collects the pipelines that were started.

    The page with its charts, which takes a second, is left out.
    """
    pipelines: list[ResolvedPipeline] = []

    def write_record(comparison: Comparison, folder: Path, _made_by: str) -> None:
        artifact.write(folder / Comparison.FILE, comparison)

    def run_child(command: Sequence[str], _environment: Mapping[str, str], log: Path) -> tuple[int, str]:
        pipeline = read(ResolvedPipeline, [Path(command[-1])])
        pipelines.append(pipeline)
        folder, steps = Path(pipeline.output), pipeline.pretrain.recipe.num_steps
        log.write_text("done\n", encoding="utf-8")
        for name in ("run/checkpoints", "long", "done"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        metrics = MetricsFile(folder / "run")
        for step, accuracy in ((0, 10.0), (steps, accuracy_after(pipeline))):
            line = EvaluationMetrics(step=step, tokens=64 * step, held_out=measured(accuracy), base_cut=40.0)
            metrics.append(line)
        state = TrainState(step=steps, tokens=64 * steps, training_seconds=0.5 * steps)
        summary = RunSummary(state=state, train_tokens_per_second=128.0, num_processes=1, peak_memory_bytes=1)
        artifact.write(folder / "run" / RunSummary.FILE, summary)
        (folder / "done" / f"{pipeline.until}.toml").touch()
        return 0, ""

    monkeypatch.setattr(stage, "write_comparison", write_record)
    monkeypatch.setattr(stage, "run_child", run_child)
    return pipelines


def names(pipelines: Sequence[ResolvedPipeline]) -> list[str]:
    return [pipeline.output.removeprefix("out/compare/") for pipeline in pipelines]


def test_all_combinations_run_with_one_seed_and_the_best_with_the_others(
    mine: str, tmp_path: Path, started: list[ResolvedPipeline]
) -> None:
    stage.compare(settings(mine, written(tmp_path, "search.toml", SEARCH)))
    values = [f"learning_rate-{rate},schedule-{name}" for rate in (0.0001, 0.0004) for name in ("linear", "cosine")]
    searched = [f"{arm}/{value}/seed-1" for arm in ("hierarchical", "tile") for value in values]
    best = [f"{arm}/{values[2]}/seed-{seed}" for arm in ("hierarchical", "tile") for seed in (2, 3)]
    assert names(started) == searched + best
    assert [pipeline.pretrain.recipe.seed for pipeline in started] == [1] * 8 + [2, 3, 2, 3]
    assert {pipeline.prepare.output for pipeline in started} == {pipeline.pretrain.rows for pipeline in started}
    assert {pipeline.prepare.output for pipeline in started} == {"out/rows"}
    assert {pipeline.until for pipeline in started} == {"pretrain"}
    comparison = artifact.read(Comparison, Path("out/compare/comparison.json"))
    assert len(comparison.trials) == 12
    assert [arm.name for arm in comparison.arms()] == ["tile", "hierarchical"]


def test_the_best_arm_becomes_a_pipeline_file(
    mine: str, tmp_path: Path, started: list[ResolvedPipeline], capsys: pytest.CaptureFixture[str]
) -> None:
    stage.compare(settings(mine, written(tmp_path, "search.toml", SEARCH)))
    best = read(ResolvedPipeline, [Path("out/compare/pipeline.toml")])
    assert best.extend is not None and best.extend.recipe.initialisation == "tile"
    assert (best.pretrain.recipe.learning_rate, best.pretrain.recipe.num_steps) == (4e-4, 100)
    assert (best.output, best.until) == ("out", "release")
    output = capsys.readouterr().out
    assert "tile is best: 34.00 % against 30.00 % after training, +2.00 ± 2.00 points (84 % certain)" in output
    assert "longmlm run out/compare/pipeline.toml" in output


def test_finished_trials_are_not_repeated_and_changed_ones_are(mine: str, started: list[ResolvedPipeline]) -> None:
    stage.compare(settings(mine))
    assert names(started) == ["hierarchical/as-given/seed-42", "tile/as-given/seed-42"]
    stage.compare(settings(mine))
    assert len(started) == 2
    (Path("out/compare/tile/as-given/seed-42/done/pretrain.toml")).unlink()
    stage.compare(settings(mine))
    assert names(started[2:]) == ["tile/as-given/seed-42"]
    stage.compare(settings(mine, "--pretrain.recipe.num-steps", "50"))
    assert len(started) == 5


@pytest.mark.parametrize("is_kept", [False, True])
def test_weights_are_removed_unless_they_are_kept(mine: str, started: list[ResolvedPipeline], is_kept: bool) -> None:
    stage.compare(settings(mine, "--compare.keep-weights" if is_kept else "--compare.no-keep-weights"))
    for name in ("long", "run/checkpoints"):
        assert Path("out/compare/tile/as-given/seed-42", name).is_dir() == is_kept
    assert Path("out/compare/tile/as-given/seed-42/run/metrics.jsonl").is_file()


def test_an_arm_with_other_rows_gets_its_own(mine: str, tmp_path: Path, started: list[ResolvedPipeline]) -> None:
    stage.compare(settings(mine, written(tmp_path, "control.toml", CONTROL)))
    rows = {pipeline.output.split("/")[2]: pipeline.pretrain.rows for pipeline in started}
    assert rows["hierarchical"] == rows["tile"] == "out/rows"
    assert rows["own-length"].startswith("out/compare/rows-")
    assert started[-1].extend is None
    assert [arm.name for arm in artifact.read(Comparison, Path("out/compare/comparison.json")).arms()] == [
        "tile",
        "hierarchical",
    ]


def test_a_failed_trial_names_its_log(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_child(_command: Sequence[str], _environment: Mapping[str, str], log: Path) -> tuple[int, str]:
        log.write_text("first\nerror: no such text\n", encoding="utf-8")
        return 2, ""

    monkeypatch.setattr(stage, "run_child", run_child)
    with pytest.raises(
        TrainingError, match=r"\[1/2\] hierarchical, seed 42: failed \(exit code 2\): error: no such text"
    ):
        stage.compare(settings(mine))


def test_a_signal_stops_the_comparison(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "run_child", lambda *_, **__: (143, "SIGTERM"))
    with pytest.raises(SystemExit) as stopped:
        stage.compare(settings(mine))
    assert stopped.value.code == 143


def test_a_wrong_arm_is_refused_before_any_trial(mine: str, tmp_path: Path, started: list[ResolvedPipeline]) -> None:
    wrong = written(tmp_path, "wrong.toml", '[compare.arms.other.extend.recipe]\ninitialisation = "til"\n')
    with pytest.raises(ConfigError, match=r"arm other: extend\.recipe\.initialisation"):
        stage.compare(settings(mine, wrong))
    assert started == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('plain = "none"', "plain = none: there is no such arm, only hierarchical, tile"),
        ('control = "none"', "control = none: there is no such arm"),
        ('control = "tile"\nplain = "tile"', "plain and control must be different arms"),
        ("seeds = [1, 1]", "seeds must be different"),
        ("seeds = []", "seeds must be different numbers, at least one"),
        ("search.pretrain.recipe.learning_rate = 1e-4", "search.pretrain.recipe.learning_rate needs a list of values"),
        ('arms."a/b" = {}', "arm 'a/b': a name may have letters"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(mine: str, tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(mine, written(tmp_path, "wrong.toml", f"[compare]\n{table}\n"))
    assert message in str(raised.value)


def test_a_pipeline_without_arms_needs_a_budget(tmp_path: Path) -> None:
    pipeline = written(tmp_path, "plain.toml", MINE.partition("[compare")[0])
    with pytest.raises(ConfigError, match=r"set arms under \[compare\.arms\.NAME\], or give a budget"):
        settings(pipeline)
    assert settings(pipeline, "--budget", "1h").budget == "1h"


@pytest.mark.parametrize(("text", "minutes"), [("90m", 90), ("1h", 60), ("1.5h", 90), ("2d", 2880)])
def test_budgets_have_units(text: str, minutes: float) -> None:
    assert budget_minutes(text) == minutes


@pytest.mark.parametrize("text", ["60", "h", "-1h", "0h", "1 hour", ""])
def test_other_budgets_are_refused(mine: str, text: str) -> None:
    with pytest.raises(ConfigError, match="write a number with a unit"):
        settings(mine, "--budget", text)


@pytest.fixture
def budgeted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[ResolvedPipeline]) -> Callable:
    """Compares within a budget, with a rate of 1e-4 in the pipeline and trials that seem to take 10 s to start."""
    monkeypatch.chdir(tmp_path)
    text = MINE.partition("[compare")[0] + "learning_rate = 1e-4\nwarmup_steps = 70\n"
    pipeline, measure = written(tmp_path, "plain.toml", text), stage.measured_trial

    def measured_trial(planned: stage.Plan, seconds: float, config: ComparedPipeline) -> object:
        trial = measure(planned, seconds, config)
        return replace(trial, seconds=10 + trial.training_seconds)

    monkeypatch.setattr(stage, "measured_trial", measured_trial)

    def run(budget: str) -> list[ResolvedPipeline]:
        stage.compare(settings(pipeline, "--budget", budget))
        return started

    return run


def test_a_budget_is_spent_on_probes_rates_and_a_second_seed(budgeted: Callable) -> None:
    pipelines = budgeted("10m")
    assert [name.split("/")[0] for name in names(pipelines[:3])] == ["hierarchical", "averaged", "stretched"]
    assert [pipeline.pretrain.recipe.num_steps for pipeline in pipelines[:3]] == [10] * 3
    searched, final = pipelines[3:11], pipelines[11:]
    left = 600 - 3 * (10 + 5)
    assert {pipeline.pretrain.recipe.num_steps for pipeline in searched + final} == {int((left / 10 - 10) / 0.5)}
    rates = [pipeline.pretrain.recipe.learning_rate for pipeline in searched]
    assert rates == pytest.approx([1e-4, 2e-4, 4e-4, 8e-4] * 2)
    assert [pipeline.pretrain.recipe.learning_rate for pipeline in final] == pytest.approx([4e-4] * 2)
    assert [pipeline.pretrain.recipe.seed for pipeline in final] == [43, 43]
    best = tomllib.loads(Path("out/compare/pipeline.toml").read_text(encoding="utf-8"))
    assert best["pretrain"]["recipe"]["learning_rate"] == pytest.approx(4e-4)


def test_a_small_budget_tries_fewer_rates(budgeted: Callable) -> None:
    pipelines = budgeted("3m")
    assert [round(p.pretrain.recipe.learning_rate * 1e4) for p in pipelines[3:7]] == [1, 4, 1, 4]


def test_a_budget_that_is_too_short_says_how_much_is_needed(budgeted: Callable) -> None:
    needed = (3 * 15 + 6 * (10 + 20 * 0.5)) / 60
    with pytest.raises(ConfigError, match=f"the budget is too short .* set it to {needed + 1:.0f}m or more"):
        budgeted("2m")


def test_the_record_is_json_with_all_trials(mine: str, started: list[ResolvedPipeline]) -> None:
    stage.compare(settings(mine))
    content = json.loads(Path("out/compare/comparison.json").read_text(encoding="utf-8"))
    assert {key: content[key] for key in ("format", "model", "row_length", "plain")} == {
        "format": 1,
        "model": "owner/base",
        "row_length": 64,
        "plain": "hierarchical",
    }
    assert [len(trial["curve"]) for trial in content["trials"]] == [2, 2]
