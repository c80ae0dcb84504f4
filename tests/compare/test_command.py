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


def test_trials_share_rows_and_end_where_the_comparison_says(mine: str, runs: FakeRuns) -> None:
    comparison = compared(mine, overlay(SEARCH))
    values = [f"learning_rate-{rate},schedule-{name}" for rate in (0.0001, 0.0004) for name in ("linear", "cosine")]
    assert runs.names[:4] == [f"hierarchical/{value}/seed-1" for value in values]
    assert runs.names[8:10] == [f"hierarchical/{values[2]}/seed-{seed}" for seed in (2, 3)], "the best ones"
    assert [pipeline.pretrain.recipe.seed for pipeline in runs.started] == [1] * 8 + [2, 3, 2, 3]
    assert {(one.prepare.output, one.pretrain.rows, one.until) for one in runs.started} == {
        ("out/rows", "out/rows", "pretrain")
    }
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
    anew = "starts over: its weights, which evaluate needs, are gone" in capsys.readouterr().out
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


def test_trials_with_other_rows_run_again(mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    compared(mine)
    runs.rows = "of another text"
    comparison = compared(mine)
    assert runs.names == FIRST * 2
    assert {trial.rows_sha256 for trial in comparison.trials} == {"of another text"}
    earlier = "its earlier result is now in out/compare/trials/tile/as-given/seed-42.earlier"
    assert f"tile, seed 42 starts over: other rows; {earlier}" in capsys.readouterr().out


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


def test_a_comparison_of_which_only_the_control_has_finished_is_an_error(
    mine: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_but_for_the_control(pipeline: ResolvedPipeline) -> str:
        (Path(pipeline.output) / "run").mkdir(parents=True, exist_ok=True)
        return "" if "/own/" in pipeline.output else "error: no such text"

    runs.failures = fails_but_for_the_control
    control = '[compare]\ncontrol = "own"\n[compare.arms.own]\nlength = 32\nextension = false\n'
    with pytest.raises(TrainingError, match=r"every trial failed: hierarchical, seed 42 failed: no such text"):
        compared(mine, overlay(control))
    assert "[2/3] tile, seed 42 failed: no such text; its output is in" in capsys.readouterr().out
    assert len(runs.started) == 3 and not Path("out/compare/comparison.json").exists()


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
