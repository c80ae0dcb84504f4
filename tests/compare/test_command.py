"""Which trials of a comparison run, are resumed, skipped, made anew and reported. No trial is really trained."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from longmlm.artifacts.provenance import Distilled, Extension, ModelSource, Provenance
from longmlm.compare import command
from longmlm.errors import ConfigError, TrainingError
from longmlm.settings.extend import ExtendRecipe
from longmlm.settings.pipeline import ResolvedPipeline
from tests.compare.fake_runs import FakeRuns, best_file, compared, settings
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
SEARCH = """
[compare]
seeds = [1, 2, 3]
[compare.search.pretrain.recipe]
learning_rate = [1e-4, 4e-4]
schedule = ["linear", "cosine"]
"""
EVALUATE = '[compare]\nuntil = "evaluate"\n'
FIRST = ["hierarchical/as-given/seed-42", "tile/as-given/seed-42"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, "mine.toml", MINE)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    return FakeRuns(monkeypatch)


def overlay(text: str, name: str = "overlay.toml") -> str:
    return written(Path(), name, text)


def test_all_combinations_run_with_one_seed_and_the_best_with_the_others(mine: str, runs: FakeRuns) -> None:
    comparison = compared(mine, overlay(SEARCH))
    values = [f"learning_rate-{rate},schedule-{name}" for rate in (0.0001, 0.0004) for name in ("linear", "cosine")]
    searched = [f"{arm}/{value}/seed-1" for arm in ("hierarchical", "tile") for value in values]
    best = [f"{arm}/{values[2]}/seed-{seed}" for arm in ("hierarchical", "tile") for seed in (2, 3)]
    assert runs.names == searched + best
    assert [pipeline.pretrain.recipe.seed for pipeline in runs.started] == [1] * 8 + [2, 3, 2, 3]
    assert {pipeline.prepare.output for pipeline in runs.started} == {"out/rows"}
    assert {pipeline.pretrain.rows for pipeline in runs.started} == {"out/rows"}
    assert {pipeline.until for pipeline in runs.started} == {"pretrain"}
    assert len(comparison.trials) == 12
    assert [arm.name for arm in comparison.arms()] == ["tile", "hierarchical"]


def test_tokens_count_from_the_start_of_a_distillation(mine: str, runs: FakeRuns) -> None:
    distilled = Distilled(
        layers=1, window=8, precision="no", tokens=5000, flop_ratio=2 / 3, rows_sha256="", relative_error=0.1
    )
    recipe = ExtendRecipe(num_positions=64, initialisation="distilled")
    extension = Extension.of(recipe, ModelSource(name="owner/base"), 16)
    runs.provenance = Provenance(extension=replace(extension, distilled=distilled))
    (trial, *_) = compared(mine).trials
    assert [line.tokens for line in trial.curve] == [5000, 5000 + 64 * 100]
    assert (trial.base_positions, trial.distilled) == (16, distilled)


def test_the_best_arm_becomes_a_pipeline_file(mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    compared(mine, overlay(SEARCH))
    best = best_file()
    assert best.extend is not None and best.extend.recipe.initialisation == "tile"
    assert (best.pretrain.recipe.learning_rate, best.pretrain.recipe.num_steps) == (4e-4, 100)
    assert (best.output, best.until, best.prepare.output) == ("out", "release", "out/rows")
    output = capsys.readouterr().out
    assert "tile ranks first by accuracy after training: after training 34.00 %, hierarchical 30.00 %, +2.00" in output
    assert "to train the best arm anew, for 100 steps: longmlm run out/compare/pipeline.toml" in output


def test_finished_trials_are_not_repeated(mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    compared(mine)
    assert runs.names == FIRST
    assert "finished before" not in capsys.readouterr().out
    compared(mine)
    assert len(runs.started) == 2
    output = capsys.readouterr().out
    assert (output.count("seed 42: finished before, "), output.count(" starts\n")) == (2, 0)


def test_an_old_result_is_never_taken_for_one_of_new_settings(
    mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(mine)
    faster = overlay("[pretrain.recipe]\nlearning_rate = 4e-4\n")
    runs.stopped_at = 2
    with pytest.raises(SystemExit) as stopped:
        compared(mine, faster)
    assert stopped.value.code == 143
    captured = capsys.readouterr()
    assert "[1/2] hierarchical, seed 42 starts anew: other settings or inputs of pretrain" in captured.out
    assert "[1/2] hierarchical, seed 42 stopped by SIGTERM: run the same command again to resume" in captured.err
    runs.stopped_at = None
    comparison = compared(mine, faster)
    assert "[1/2] hierarchical, seed 42 resumes\n" in capsys.readouterr().out
    assert [trial.after.whole.accuracy for trial in comparison.trials] == [30.0, 34.0]
    assert len(runs.started) == 4


def test_a_trial_is_repeated_for_what_it_depends_on_and_nothing_else(mine: str, runs: FakeRuns) -> None:
    compared(mine)
    reordered = MINE.replace('length = 64\noutput = "out"\n', 'output = "out"\nlength = 64\n')
    compared(overlay(reordered + '[release.card]\ntitle = "other"\n[pretrain.runtime]\nlog_every_steps = 3\n'))
    assert len(runs.started) == 2
    compared(overlay(reordered + "[pretrain.runtime]\nevaluate_every_steps = 3\n"))
    assert len(runs.started) == 4


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_later_last_stage_needs_the_weights(
    mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str], is_kept: bool
) -> None:
    kept, later = overlay(f"[compare]\nkeep_weights = {is_kept}\n".lower()), overlay(EVALUATE, "later.toml")
    compared(mine, kept)
    compared(mine, kept, later)
    anew = "starts anew: its weights, which evaluate needs, are gone" in capsys.readouterr().out
    assert anew != is_kept
    assert len(runs.started) == 4
    compared(mine, kept)
    assert len(runs.started) == 4


@pytest.mark.parametrize("is_kept", [False, True])
def test_weights_are_removed_unless_they_are_kept(mine: str, runs: FakeRuns, is_kept: bool) -> None:
    trial = Path("out/compare/trials/tile/as-given/seed-42")
    compared(mine, overlay(f"[compare]\nkeep_weights = {is_kept}\n".lower()))
    weights = [trial / "long/model.safetensors", trial / "run/checkpoints"]
    assert [path.exists() for path in weights] == [is_kept] * 2
    assert (trial / "run/metrics.jsonl").is_file()
    weights[0].touch()  # as if the comparison had been killed before it removed them
    compared(mine)
    assert not weights[0].exists()


def test_a_failing_trial_does_not_stop_the_others(
    mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverges_with_seed_2(pipeline: ResolvedPipeline) -> str:
        (Path(pipeline.output) / "run").mkdir(parents=True, exist_ok=True)
        fails = "/tile/" in pipeline.output and pipeline.pretrain.recipe.seed == 2
        return "error: the loss is not finite at step 7" if fails else ""

    runs.failures = diverges_with_seed_2
    text = overlay("[compare]\nseeds = [1, 2]\n")
    comparison = compared(mine, text)
    assert len(runs.started) == 4 and len(comparison.trials) == 3
    assert [arm.name for arm in comparison.arms()] == ["hierarchical", "tile"]
    [failed] = comparison.failed
    assert failed.description == "tile, seed 2 failed: the loss is not finite at step 7"
    output = capsys.readouterr().out
    assert f"{failed.description}\npage: " in output
    assert "[4/4] tile, seed 2 failed: the loss" in output and "seed-2/log.txt" in output
    runs.failures = lambda _: ""
    comparison = compared(mine, text)
    assert len(runs.started) == 5 and comparison.failed == ()
    assert comparison.arms()[0].name == "tile"


def test_an_arm_of_which_the_first_seed_failed_is_left_at_that(mine: str, runs: FakeRuns) -> None:
    runs.failures = lambda pipeline: "error: too high" if "tile" in pipeline.output else ""
    comparison = compared(mine, overlay("[compare]\nseeds = [1, 2]\n"))
    assert runs.names == [
        f"{name}/as-given/seed-{seed}" for name, seed in (("hierarchical", 1), ("tile", 1), ("hierarchical", 2))
    ]
    assert [arm.name for arm in comparison.arms()] == ["hierarchical"]


def test_trials_with_other_rows_run_again(mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    compared(mine)
    runs.rows = "of another text"
    comparison = compared(mine)
    assert runs.names == FIRST * 2
    assert {trial.rows_sha256 for trial in comparison.trials} == {"of another text"}
    earlier = "its earlier result is now in out/compare/trials/tile/as-given/seed-42.earlier"
    assert f"tile, seed 42 starts anew: other rows; {earlier}" in capsys.readouterr().out


def test_a_finished_trial_that_cannot_run_again_keeps_its_result(
    mine: str, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(mine)
    monkeypatch.setattr(command, "check_inputs", raising := Mock(side_effect=ConfigError("no such model")))
    assert compared(mine).trials
    with pytest.raises(ConfigError, match="no such model"):
        compared(mine, overlay("[pretrain.recipe]\nweight_decay = 0.1\n"))
    assert raising.call_count == 1 and not list(Path("out").rglob("*.earlier"))


def test_finished_trials_keep_the_hash_of_rows_that_are_gone(mine: str, runs: FakeRuns) -> None:
    before = compared(mine)
    shutil.rmtree("out/rows")
    assert compared(mine).trials == before.trials


def test_rows_that_are_gone_are_packed_before_finished_trials_are_judged(mine: str, runs: FakeRuns) -> None:
    compared(mine)
    shutil.rmtree("out/rows")
    runs.rows = "of another text"
    comparison = compared(
        mine, overlay("[compare.arms.a.extend.recipe]\nalpha = 0.3\ninitialisation = 'hierarchical'\n")
    )
    assert runs.names == [*FIRST, "a/as-given/seed-42", *FIRST]
    assert {trial.rows_sha256 for trial in comparison.trials} == {"of another text"}


def test_a_comparison_of_which_every_trial_failed_is_an_error(mine: str, runs: FakeRuns) -> None:
    runs.failures = lambda _: "error: no such text"
    with pytest.raises(TrainingError, match=r"hierarchical, seed 42 failed: no such text; its output is in"):
        compared(mine)
    assert len(runs.started) == 1
    for name in FIRST:
        Path("out/compare/trials", name, "run").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(Path("out/compare/trials", FIRST[1]))
    with pytest.raises(TrainingError, match=r"every trial failed: hierarchical, seed 42 failed: no such text"):
        compared(mine)
    assert len(runs.started) == 3


def test_a_control_arm_may_be_listed_first(tmp_path: Path, runs: FakeRuns, mine: str) -> None:
    base, _, arms = MINE.partition("[compare.arms.hier")
    control = '[compare]\ncontrol = "own"\n[compare.arms.own]\nlength = 32\nextension = false\n'
    comparison = compared(overlay(f"{base}{control}[compare.arms.hier{arms}"))
    assert (comparison.baseline, comparison.control) == ("hierarchical", "own")
    assert [arm.name for arm in comparison.arms()] == ["tile", "hierarchical"]
    assert runs.names[-1] == "own/as-given/seed-42"


def test_the_settings_on_the_page_can_be_run_again(mine: str, runs: FakeRuns) -> None:
    with_empty_tables = overlay(f"{SEARCH}\n[release.card]\n", "mine2.toml")
    first = compared(mine, with_empty_tables)
    again = overlay(Path("out/compare/made_by.toml").read_text(encoding="utf-8"), "again.toml")
    assert "[release" not in Path(again).read_text(encoding="utf-8")
    assert settings(again) == settings(mine, overlay(SEARCH))
    assert compared(again).trials == first.trials
    assert len(runs.started) == 12


def test_without_arms_three_learning_rates_are_compared(
    mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MINE.partition("[compare")[0] + "learning_rate = 2e-4\n"
    comparison = compared(overlay(text))
    assert [pipeline.pretrain.recipe.learning_rate for pipeline in runs.started] == [2e-4, 1e-4, 4e-4]
    assert runs.names == [f"rate-{rate}/as-given/seed-42" for rate in ("0.0002", "0.0001", "0.0004")]
    assert {pipeline.prepare.output for pipeline in runs.started} == {"out/rows"}
    assert comparison.baseline == "rate-0.0002"
    assert [arm.name for arm in comparison.arms()] == ["rate-0.0004", "rate-0.0002", "rate-0.0001"]
    assert "rate-0.0004 ranks first" in capsys.readouterr().out
    best = best_file()
    assert (best.pretrain.recipe.learning_rate, best.pretrain.recipe.num_steps) == (4e-4, 100)
    again = Path("out/compare/made_by.toml").read_text(encoding="utf-8")
    assert settings(overlay(again)).compare == settings(overlay(text)).compare


def test_a_wrong_arm_is_refused_before_any_trial(mine: str, runs: FakeRuns) -> None:
    wrong = overlay('[compare.arms.other.extend.recipe]\ninitialisation = "til"\n')
    with pytest.raises(ConfigError, match=r"arm other: extend\.recipe\.initialisation"):
        compared(mine, wrong)
    assert runs.started == []
