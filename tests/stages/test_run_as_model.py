"""A run folder stands for its best checkpoint wherever a model is named; pipeline keys are options of stages."""

from pathlib import Path

import pytest

from longmlm.config import parse
from longmlm.errors import CheckpointError, ConfigError
from longmlm.pipeline_files import checked_model
from longmlm.processes import LAUNCHED, MPI
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig
from longmlm.settings.pretrain import PretrainConfig
from longmlm.stages.extend import extend
from tests.support.launching import launch_as_second_of_two
from tests.support.tiny import LONG_POSITIONS

MINE = """
model = "{model}"
corpus = ["docs/*.jsonl"]
length = 80
output = "out/mine"
"""


@pytest.fixture
def mine(run_folder: Path, tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.format(model=run_folder), encoding="utf-8")
    return str(path)


def test_a_run_as_model_of_a_pipeline_is_its_best_checkpoint(run_folder: Path, mine: str) -> None:
    best = str(run_folder / "checkpoints" / "step-00000001")  # of two, the first is more accurate
    config = parse(ResolvedPipeline, [mine])
    assert config.model == config.extend.base == config.prepare.recipe.tokenizer == config.evaluate.base == best
    assert config.release.card.title == f"{run_folder.parent.name}-80"
    assert parse(ExtendConfig, [mine]).base == best
    base = Pipeline(model=str(run_folder), corpus=("a",), length=2 * LONG_POSITIONS, output="out")
    assert checked_model(base).num_positions == LONG_POSITIONS


def test_a_run_as_base_of_a_stage_is_its_best_checkpoint(run_folder: Path, tmp_path: Path, run_here) -> None:
    recipe = {"num_positions": 2 * LONG_POSITIONS, "initialisation": "hierarchical"}
    settings = {"base": str(run_folder), "output": str(tmp_path / "long"), "recipe": recipe}
    code, said, errors = run_here(ExtendConfig, extend, settings)
    assert (code, errors) == (0, "") and f"positions: {LONG_POSITIONS} -> {2 * LONG_POSITIONS}" in said
    options = ["--recipe.tokenizer", str(run_folder), "--recipe.row-length", "40", "--output", "rows"]
    corpus = ["--recipe.sources.0.files", "a.txt", "--recipe.held-out-fraction", "0.1"]
    prepare = parse(PrepareConfig, [*options, *corpus])
    assert prepare.recipe.tokenizer == str(run_folder / "checkpoints" / "step-00000001")


def test_a_run_without_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        parse(ExtendConfig, ["--base", str(tmp_path / "run"), "--output", "long", "--recipe.num-positions", "80"])


def test_keys_of_the_pipeline_are_options_of_every_stage(mine: str) -> None:
    options = ["--corpus", "other.txt", "--length", "64", "--text-field", "body"]
    [source] = parse(PrepareConfig, [mine, *options]).recipe.sources
    assert (source.files, source.text_field) == (("other.txt",), "body")
    assert parse(PrepareConfig, [mine, *options]).recipe.row_length == 64
    own = parse(PrepareConfig, [mine, "--output", "rows", "--recipe.held-out-fraction", "0.5"])
    assert (own.output, own.recipe.held_out_fraction) == ("rows", 0.5)
    assert parse(PretrainConfig, [mine, "--output", "elsewhere"]).run == "elsewhere/run"
    assert parse(CheckpointsConfig, [mine, "--length", "64"]).run == "out/mine/run"
    with pytest.raises(ConfigError, match="unknown option --corpsu, did you mean --corpus"):
        parse(PrepareConfig, [mine, "--corpsu", "other.txt"])


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_launch_that_pretrain_does_not_use_is_named(mine: str, is_launched: bool, monkeypatch, capsys) -> None:
    for name in (*LAUNCHED, *MPI):
        monkeypatch.delenv(name, raising=False)
    if is_launched:
        launch_as_second_of_two(monkeypatch)
    parse(PretrainConfig, [mine, "--launch", "ddp"])
    note = f"a single process. To train in all of them: longmlm run {mine} --until pretrain\n"
    assert (note in capsys.readouterr().err) == (not is_launched)
    for option in (["--launch", "ddp"], ["--until", "extend"]):
        with pytest.raises(ConfigError, match=f"unknown option {option[0]}"):
            parse(PrepareConfig, [mine, *option])


def test_a_run_folder_is_a_checkpoint_in_the_options_of_a_stage(run_folder: Path, mine: str) -> None:
    run, best = str(run_folder), str(run_folder / "checkpoints" / "step-00000001")
    own = parse(ResolvedPipeline, [mine, "--no-extension"])
    assert own.pretrain.start.checkpoint == own.evaluate.base == own.model == best
    assert parse(PrepareConfig, [mine, "--recipe.tokenizer", run]).recipe.tokenizer == best
    assert parse(ExtendConfig, [mine, "--base", run]).base == best
