"""Steps that `run --more-steps` adds to a finished pipeline: once, and the later stages are made anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import staleness
from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.run import Continuation
from longmlm.config import parse
from longmlm.errors import ConfigError, FolderError, UserError
from longmlm.needs import check_inputs
from longmlm.settings.pipeline import RunConfig
from longmlm.stages import run
from longmlm.stages.run import summary
from longmlm.training.run_folder import newest_state
from tests.support.finished import remove, settings
from tests.support.results import write_run

MORE = ("--more-steps", "50")
AGAIN = ["pretrain --more-steps 50", "evaluate", "release"]


def test_more_steps_train_evaluate_and_release_anew_each_time(folder: Path, started: list[str]) -> None:
    run.run(settings(*MORE))
    assert started == AGAIN
    assert "more_steps" not in (folder / "pipeline.toml").read_text(encoding="utf-8")
    run.run(settings())
    assert started == AGAIN
    run.run(settings(*MORE))
    assert started == 2 * AGAIN
    assert newest_state(folder / "run").num_steps == 3000 + 2 * 50


def test_more_steps_that_were_interrupted_are_resumed_and_not_added_twice(folder: Path, started: list[str]) -> None:
    added = (Continuation(from_step=3000, num_steps=50),)
    write_run(settings(), 3010, added)
    assert (folder / "release").is_dir() and not staleness.is_current(settings(), "pretrain")
    run.run(settings())
    assert started == ["pretrain", "evaluate", "release"]
    started.clear()
    write_run(settings(), 3060, (*added, Continuation(from_step=3050, num_steps=50)))
    run.run(settings(*MORE))
    assert (started, newest_state(folder / "run").num_steps) == (AGAIN, 3100)


@pytest.mark.parametrize("left", ["evaluate", "release"])
def test_more_steps_that_were_made_are_not_added_again_before_the_later_stages_are_done(
    folder: Path, started: list[str], left: str
) -> None:
    run.run(settings(*MORE))
    started.clear()
    remove(folder / "release", *([folder / "evaluation"] if left == "evaluate" else []))
    run.run(settings(*MORE))
    assert started == ["evaluate", "release"][["evaluate", "release"].index(left) :]
    assert newest_state(folder / "run").num_steps == 3050


def test_more_steps_are_added_again_if_the_release_is_refused_for_the_accuracy(
    folder: Path, started: list[str]
) -> None:
    run.run(settings(*MORE))
    started.clear()
    remove(folder / "release")
    file = folder / "evaluation" / Evaluation.FILE
    evaluation = read_evaluation(file)
    base = evaluation.measured["base_chunks"]
    better = replace(base, whole=replace(base.whole, accuracy=99.0))
    artifact.write(file, replace(evaluation, measured=evaluation.measured | {"base_chunks": better}).signed())
    *_, train, release = summary(settings(), is_released=False).splitlines()
    assert train == "next: train longer, for example by 1,500 steps: longmlm run out/pipeline.toml --more-steps 1500"
    assert "longmlm run out/pipeline.toml --release.recipe.allow-unrecovered" in release
    run.run(settings(*MORE))
    assert started == AGAIN


def test_more_steps_need_the_settings_of_the_run(folder: Path, started: list[str]) -> None:
    with pytest.raises(FolderError, match=r"^pretrain: out/run was made with other settings: recipe.seed was 42, is 1"):
        run.run(settings(*MORE, "--pretrain.recipe.seed", "1"))
    with pytest.raises(FolderError, match=r"recipe.num_steps was 3000, is 4000.* with --more-steps$"):
        run.run(settings("--pretrain.recipe.num-steps", "4000"))
    assert started == []


@pytest.mark.parametrize(
    ("options", "gone", "message"),
    [
        (("--until", "prepare"), "", "until = prepare ends before pretrain: remove one of them"),
        ((), "run", "out/run has no checkpoint: run the same command without --more-steps first"),
        ((), "rows", "prepare's result out/rows is gone: restore it"),
        ((), "long", "extend's result out/long is gone: restore it"),
        ((), "../base", "base"),
    ],
)
def test_more_steps_without_what_they_need_are_refused(
    folder: Path, options: tuple[str, ...], gone: str, message: str
) -> None:
    check_inputs(settings(*MORE))
    if gone:
        remove(folder / gone)
    with pytest.raises(UserError, match=message):
        check_inputs(settings(*MORE, *options))


@pytest.mark.parametrize("table", ["", "[pretrain]\n"])
def test_more_steps_are_refused_in_a_file(folder: Path, table: str) -> None:
    Path("more.toml").write_text(f"{table}more_steps = 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"more.toml: more_steps: remove it, since a file would add steps each time"):
        parse(RunConfig, ["demo", "more.toml"])
    for number in ("0", "-1", "1.5", "many"):
        with pytest.raises(ConfigError, match="more_steps must be at least 1|--more-steps expects an integer"):
            settings("--more-steps", number)
