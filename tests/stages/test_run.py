"""The run command's checks before a stage starts: what was made from other settings or text is never taken for done."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.artifacts.run import RunSummary, TrainState
from longmlm.data import disk
from longmlm.errors import DataError, FolderError
from longmlm.settings.shipped import PACKAGE
from longmlm.stages import run
from tests.support.finished import remove, settings, write_text
from tests.support.results import write_result, write_run


@pytest.mark.parametrize(
    ("option", "removed"),
    [("--extend.recipe.smooth-terms=5", "long"), ("--prepare.recipe.held-out-fraction=0.2", "rows")],
)
def test_a_run_is_not_taken_for_one_of_the_model_or_rows_that_replace_its_own(
    folder: Path, option: str, removed: str
) -> None:
    remove(folder / removed, folder / "release")
    name = option[2:].partition("=")[0].replace("-", "_")
    with pytest.raises(
        FolderError, match=f"out/run was made with other settings: {name} was .*; set them back, or name"
    ):
        staleness.check_results(settings(option))
    remove(folder / "run")
    staleness.check_results(settings(option))


def test_a_finished_pipeline_has_nothing_to_do(folder: Path, started: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run.run(settings("--pretrain.runtime.num-threads", "2"))
    assert started == []
    assert {path: path.stat().st_mtime_ns for path in before if path.name != "pipeline.toml"} == before


def test_what_is_made_again_from_the_same_is_the_same(folder: Path, started: list[str]) -> None:
    remove(folder / "rows", folder / "long", folder / "release")
    run.run(settings())
    assert started == ["extend", "prepare", "release"]


def test_a_stage_beyond_until_is_not_current_with_other_rows(folder: Path, started: list[str]) -> None:
    remove(folder / "rows", folder / "release", folder / "evaluation", folder / "run")
    write_text(30)
    run.run(settings("--until", "pretrain"))
    remove(folder / "rows")
    write_text(10)
    run.run(settings("--until", "prepare"))
    assert staleness.is_current(settings(), "prepare")
    assert not staleness.is_current(settings(), "pretrain")
    with pytest.raises(DataError, match="^pretrain: out/run was made from other text than the corpus holds now: name"):
        run.run(settings())
    assert started == ["prepare", "pretrain", "prepare"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--evaluate.recipe.held-out.max-rows=1", ["evaluate", "release"]),
        ("--evaluate.recipe.precision=no", ["evaluate", "release"]),
        ("--release.recipe.weights=bf16", ["release"]),
        ("--release.card.title=Mine", ["release"]),
    ],
)
def test_an_evaluation_and_a_release_of_other_settings_are_replaced(
    folder: Path, started: list[str], option: str, expected: list[str]
) -> None:
    run.run(settings(option))
    assert started == expected
    run.run(settings(option))
    assert started == expected


def test_an_evaluation_of_an_earlier_model_or_curve_is_made_again(folder: Path, started: list[str]) -> None:
    file = folder / "evaluation" / Evaluation.FILE
    evaluation = read_evaluation(file)
    for name in ("base_sha256", "before_sha256", "after_sha256", "rows_sha256"):
        changed = replace(evaluation, sources=replace(evaluation.sources, **{name: "0" * 64}))
        artifact.write(file, changed.signed())
        assert not staleness.is_current(settings(), "evaluate"), name
    artifact.write(file, evaluation)
    renamed = replace(evaluation, sources=replace(evaluation.sources, base="b", before="l", after="r", rows="o"))
    artifact.write(file, renamed.signed())
    assert staleness.is_current(settings(), "evaluate")
    line = EvaluationMetrics(step=0, tokens=0, held_out=evaluation.measured["long_after"], base_chunks=40.0)
    MetricsFile(folder / "run").append(line)
    assert not staleness.is_current(settings(), "evaluate")


def test_more_steps_are_allowed_while_the_rate_is_constant(folder: Path) -> None:
    schedule = ["--pretrain.recipe.schedule=constant-then-decay", "--pretrain.recipe.decay-steps=10"]
    remove(folder / "run", folder / "release")
    write_run(settings(*schedule), step=100)
    staleness.check_results(
        settings(*schedule, "--pretrain.recipe.num-steps=5000", "--pretrain.recipe.warmup-steps=150")
    )
    with pytest.raises(FolderError, match=r"pretrain: .*: recipe\.weight_decay was 0\.01, is 0\.5"):
        staleness.check_results(settings(*schedule, "--pretrain.recipe.weight-decay=0.5"))


@pytest.mark.parametrize("until", ["prepare", "pretrain", "evaluate"])
def test_a_finished_pipeline_may_be_run_again_up_to_an_earlier_stage(folder: Path, until: str) -> None:
    staleness.check_results(settings("--until", until))
    remove(folder / "long")
    with pytest.raises(FolderError, match=r"extend has to run again, but out/release was made from its earlier result"):
        staleness.check_results(settings("--until", until))


def test_terms_are_those_of_the_long_model(folder: Path) -> None:
    terms = folder.parent / "terms.txt"
    terms.write_text("myocarditis\n", encoding="utf-8")
    config = settings("--extend.recipe.add-tokens", "terms.txt")
    with pytest.raises(FolderError, match=r"recipe\.add_tokens was None, is terms\.txt"):
        staleness.check_result(config, "extend")
    remove(folder / "long")
    write_result(config, "extend")
    shutil.copy(terms, "renamed.txt")
    assert staleness.is_done(config, "extend")
    assert staleness.is_done(settings("--extend.recipe.add-tokens", "renamed.txt"), "extend")
    assert not staleness.is_done(settings(), "extend")
    terms.write_text("myocarditis\nsarcoidosis\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"than terms.txt holds now: .*, move out/long away to make it again, or restore"
    ):
        staleness.check_result(config, "extend")
    terms.unlink()
    assert staleness.is_done(config, "extend")


def test_a_model_with_more_tokens_alone_has_the_positions_of_its_base_model(folder: Path) -> None:
    Path("terms.txt").write_text("myocarditis\n", encoding="utf-8")
    config = settings("--extend.recipe.add-tokens", "terms.txt", "--no-extension", "--length", "16")
    remove(folder / "long")
    write_result(config, "extend")
    shutil.copy("base/config.json", folder / "long")
    for positions, is_done in ((None, True), (16, True), (40, False)):
        recipe = replace(config.extend.recipe, num_positions=positions)
        asked = replace(config, extend=replace(config.extend, recipe=recipe))
        assert staleness.is_done(asked, "extend") == is_done, positions


def test_a_long_model_of_another_initialisation_is_not_taken_for_this_one(folder: Path) -> None:
    for other in ("smooth-terms=5", "initialisation=tile", "seed=1"):
        assert not staleness.is_done(settings(f"--extend.recipe.{other}"), "extend"), other
    assert staleness.is_done(settings(), "extend")


def test_a_disk_that_is_too_small_is_refused_before_any_stage(
    folder: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(folder, Path("base"))
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    monkeypatch.setattr(disk, "free_bytes", lambda _: 200_000_000)
    with pytest.raises(
        FolderError, match=r"^the results in out need about 0\.[23]\d GB more \(.*\), 0\.20 GB are free: "
    ):
        run.run(settings())
    assert not started
    run.run(settings("--pretrain.runtime.save-every-steps", "3000"))
    assert started == ["extend", "prepare", "pretrain", "evaluate", "release"]


def test_a_run_is_trained_once_its_last_step_is_evaluated(tmp_path: Path) -> None:
    stage = replace(settings("--pretrain.recipe.num-steps", "8").pretrain, run=str(tmp_path))
    for step, evaluated_at in ((8, 8), (8, 4), (4, 4)):
        state = TrainState(step=step, accuracy=40.0, evaluated_at_step=evaluated_at)
        summary = RunSummary(state=state, train_tokens_per_second=1.0, num_processes=1, peak_memory_bytes=1)
        artifact.write(tmp_path / RunSummary.FILE, summary)
        assert staleness.is_trained(stage) == (step == evaluated_at == 8)


def test_a_finished_pipeline_that_publishes_its_rows_can_be_run_again(folder: Path) -> None:
    config = settings("--prepare.publish", "hf:me/rows", "--prepare.card.license", "mit")
    assert not staleness.is_done(config, "prepare")
    staleness.check_results(config)
