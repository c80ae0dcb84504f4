"""Pipeline files: what follows from the base keys, what overrides it, and one line for every mistake."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.config import STAGES, parse, pipeline_of
from longmlm.errors import ConfigError
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.evaluate import EvaluateConfig
from longmlm.settings.extend import ExtendConfig
from longmlm.settings.masking import Masking
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.prepare import PrepareConfig, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.shipped import PACKAGE
from tests.support.prepare_settings import written

MINE = """
model = "owner/base"
corpus = ["docs/*.jsonl", "more.txt"]
length = 1536
output = "out/mine"
"""
SCRATCH = """
corpus = ["a.txt"]
length = 64
output = "out/new"
extension = false
[pretrain.start]
architecture = "bundled:roberta-mini/config.json"
tokenizer = "own-tokenizer"
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return written(tmp_path, "mine.toml", MINE)


def resolved(*arguments: str) -> ResolvedPipeline:
    return parse(ResolvedPipeline, arguments)


def refusal(*arguments: str, kind: type = ResolvedPipeline) -> str:
    """Returns the one-line message of the ConfigError that the arguments raise."""
    with pytest.raises(ConfigError) as raised:
        parse(kind, arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_every_stage_follows_from_four_keys(mine: str) -> None:
    pipeline = resolved(mine)
    assert list(pipeline.stages) == ["prepare", "extend", "pretrain", "evaluate", "release"]
    prepare, extend, pretrain = pipeline.prepare, pipeline.extend, pipeline.pretrain
    assert prepare.recipe.sources == (Source(files=("docs/*.jsonl", "more.txt")),)
    assert (prepare.output, prepare.recipe.tokenizer, prepare.recipe.row_length) == (
        "out/mine/rows",
        "owner/base",
        1536,
    )
    assert (extend.base, extend.output, extend.recipe.num_positions) == ("owner/base", "out/mine/long", 1536)
    assert (extend.recipe.initialisation, extend.rows) == ("distilled", "out/mine/rows")
    assert (pretrain.run, pretrain.rows, pretrain.start.checkpoint) == (
        "out/mine/run",
        "out/mine/rows",
        "out/mine/long",
    )
    recipe = pretrain.recipe
    steps = (recipe.num_steps, recipe.batch_tokens, recipe.learning_rate, recipe.warmup_steps)
    assert steps == (3000, 98304, 5e-5, 150)
    assert (recipe.masking, recipe.held_out.masking) == (Masking(selected_fraction=0.3), Masking())
    assert (pretrain.runtime.evaluate_every_steps, pretrain.runtime.save_every_steps) == (250, 250)
    evaluate, release = pipeline.evaluate, pipeline.release
    assert (evaluate.rows, evaluate.base, evaluate.long_before) == ("out/mine/rows", "owner/base", "out/mine/long")
    assert (evaluate.long_after, evaluate.run) == ("out/mine/run", "out/mine/run")
    assert (release.model, release.rows, release.output) == ("out/mine/run", "out/mine/rows", "out/mine/release")
    assert (release.evaluation, release.card.title) == ("out/mine/evaluation", "base-1536")


def test_base_keys_reach_the_stages(mine: str) -> None:
    pipeline = resolved(mine, "--revision", "v2", "--language", "zh", "--text-field", "body")
    assert pipeline.prepare.recipe.sources[0] == Source(
        files=("docs/*.jsonl", "more.txt"), language="zh", text_field="body"
    )
    assert (pipeline.prepare.recipe.tokenizer, pipeline.extend.revision) == ("owner/base@v2", "v2")
    start = resolved(mine, "--revision", "v2", "--no-extension").pretrain.start
    assert (start.checkpoint, start.revision, pipeline.release.card.languages) == ("owner/base", "v2", ("zh",))


def test_the_revision_of_the_base_model_is_not_that_of_another_checkpoint(mine: str) -> None:
    arguments = [mine, "--revision", "v2", "--no-extension", "--start.checkpoint", "owner/other"]
    assert parse(PretrainConfig, arguments).start.revision is None


def test_derived_values_follow_what_the_user_sets(mine: str) -> None:
    pipeline = resolved(mine, "--length", "2048", "--pretrain.recipe.num-steps", "100")
    assert pipeline.extend.recipe.num_positions == pipeline.prepare.recipe.row_length == 2048
    assert pipeline.pretrain.recipe.batch_tokens == 64 * 2048
    assert (pipeline.pretrain.recipe.warmup_steps, pipeline.pretrain.runtime.save_every_steps) == (5, 8)
    chosen = (
        ("mode=generated", "hierarchical"),
        ("attention-window=64", "tile"),
        ("add-tokens=terms.txt", "fitted"),
        ("initialisation=fitted", "fitted"),
    )
    for option, expected in chosen:
        assert resolved(mine, f"--extend.recipe.{option}").extend.recipe.initialisation == expected
    stage = parse(PretrainConfig, [mine, "--recipe.num-steps", "100"])
    assert (stage.recipe, stage.runtime) == (
        replace(pipeline.pretrain.recipe, batch_tokens=98304),
        pipeline.pretrain.runtime,
    )


def test_a_stage_table_overrides_and_an_option_wins(mine: str, tmp_path: Path) -> None:
    text = "corpus = []\nlength = 512\n[pretrain.recipe]\nwarmup_steps = 7\nnum_steps = 40\n"
    text += "[[prepare.recipe.sources]]\ndataset = 'a/b'\nsplit = 'train'\n"
    pipeline = resolved(mine, written(tmp_path, "overlay.toml", text), "--pretrain.recipe.num-steps", "60")
    assert (pipeline.pretrain.recipe.num_steps, pipeline.pretrain.recipe.warmup_steps) == (60, 7)
    assert pipeline.pretrain.runtime.save_every_steps == 5
    assert pipeline.prepare.recipe.sources == (Source(dataset="a/b", split="train"),)
    assert pipeline.release.card.languages == (), "the card names those of the rows"
    assert pipeline.prepare.recipe.row_length == pipeline.extend.recipe.num_positions == 512


@pytest.mark.parametrize("kind", STAGES)
def test_a_single_stage_reads_the_same_file(mine: str, kind: type) -> None:
    assert parse(kind, [mine]) == getattr(resolved(mine), STAGES[kind])


def test_the_checkpoints_stage_finds_the_run(mine: str) -> None:
    config = parse(CheckpointsConfig, [mine, "--action", "verify"])
    assert (config.run, config.action) == ("out/mine/run", "verify")


def test_options_of_a_stage_reach_into_its_derived_sources(mine: str) -> None:
    config = parse(PrepareConfig, [mine, "--recipe.sources.0.text-field", "body"])
    assert config.recipe.sources == (Source(files=("docs/*.jsonl", "more.txt"), text_field="body"),)


def test_options_alone_describe_a_pipeline() -> None:
    options = ["--model", "m", "--corpus", "a.txt", "b/*.txt", "--length", "64", "--output", "o"]
    assert resolved(*options).prepare.recipe.sources == (Source(files=("a.txt", "b/*.txt")),)
    message = refusal("--model", "m")
    assert "--length is missing" in message and "--output is missing" in message


def test_bundled_names_files_of_the_package(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "bundled.toml",
        'model = "bundled:roberta-mini"\ncorpus = ["bundled:text/demo.jsonl"]\nlength = 384\noutput = "o"\n',
    )
    pipeline, folder = resolved(path), PACKAGE / "bundled"
    assert pipeline.prepare.recipe.sources[0].files == (str(folder / "text" / "demo.jsonl"),)
    assert pipeline.extend.base == pipeline.prepare.recipe.tokenizer == pipeline.evaluate.base
    assert Path(pipeline.extend.base, "config.json").is_file()
    assert pipeline.release.card.title == "roberta-mini-384"


def test_bundled_names_files_of_the_package_where_a_stage_runs_alone(tmp_path: Path) -> None:
    options = ["--base", "bundled:roberta-mini", "--output", "o", "--recipe.num-positions", "256"]
    alone = parse(ExtendConfig, options)
    assert alone.base == str(PACKAGE / "bundled" / "roberta-mini")
    text = 'base = "bundled:roberta-mini"\noutput = "o"\n[recipe]\nnum_positions = 256\n'
    path = written(tmp_path, "extend.toml", text)
    assert parse(ExtendConfig, [path]) == alone


def test_without_extension_the_model_itself_is_trained(mine: str) -> None:
    pipeline = resolved(mine, "--no-extension")
    assert list(pipeline.stages) == ["prepare", "pretrain", "evaluate", "release"]
    assert pipeline.pretrain.start.checkpoint == pipeline.evaluate.base == "owner/base"
    assert (pipeline.evaluate.long_before, pipeline.evaluate.long_after) == (None, pipeline.pretrain.run)
    assert pipeline.release.evaluation == pipeline.evaluate.output
    assert "no stage extend: extension = false" in refusal(*_without(mine), kind=ExtendConfig)


def test_a_new_head_has_no_base_model_to_be_compared_with(mine: str) -> None:
    pipeline = resolved(mine, "--no-extension", "--pretrain.start.new-head")
    assert list(pipeline.stages) == ["prepare", "pretrain", "release"]
    assert pipeline.release.evaluation is None
    new_head = written(Path(mine).parent, "head.toml", "pretrain.start.new_head = true\n")
    assert "no base model with an MLM head" in refusal(*_without(mine), new_head, kind=EvaluateConfig)
    assert "extend.recipe.new_head leaves no base model" in refusal(mine, "--extend.recipe.new-head")


@pytest.mark.parametrize("extension", [True, False])
def test_added_tokens_come_before_the_text_is_encoded(mine: str, extension: bool) -> None:
    options = () if extension else ("--no-extension",)
    pipeline = resolved(mine, *options, "--extend.recipe.add-tokens", "terms.txt")
    assert list(pipeline.stages) == ["extend", "prepare", "pretrain", "evaluate", "release"]
    assert pipeline.prepare.recipe.tokenizer == pipeline.pretrain.start.checkpoint == pipeline.extend.output
    assert pipeline.extend.recipe.num_positions == (pipeline.length if extension else None)
    assert pipeline.evaluate.long_before == (pipeline.extend.output if extension else None)


def _without(mine: str) -> list[str]:
    return [mine, written(Path(mine).parent, "without.toml", "extension = false\n")]


def test_a_new_model_needs_no_base_model(tmp_path: Path) -> None:
    pipeline = resolved(written(tmp_path, "scratch.toml", SCRATCH))
    assert pipeline.prepare.recipe.tokenizer == pipeline.pretrain.start.tokenizer == "own-tokenizer"
    assert Path(pipeline.pretrain.start.architecture).is_file()
    assert pipeline.pretrain.start.checkpoint is None
    assert pipeline.release.card.title == "new-64"


def test_a_mistake_of_an_option_is_named_without_the_file(mine: str) -> None:
    error = refusal(mine, "--length", "2")
    assert "length must be at least 3" in error and mine not in error


def test_a_model_is_needed_unless_a_new_one_is_trained(tmp_path: Path) -> None:
    path = written(tmp_path, "no-model.toml", MINE.replace("model =", "# model ="))
    assert "model is missing: name the model to extend" in refusal(path)
    assert "name either a checkpoint, or an architecture" in refusal(path, "--no-extension")


def test_the_demo_keeps_its_settings() -> None:
    """The accuracy table in the README is of these."""
    demo = resolved("demo")
    recipe, evaluation = demo.pretrain.recipe, demo.evaluate.recipe
    rows = (recipe.held_out.max_rows, evaluation.held_out.max_rows)
    assert (recipe.num_steps, recipe.batch_tokens, recipe.learning_rate, recipe.warmup_steps) == (60, 6144, 6e-4, 3)
    assert (recipe.dropout, recipe.masking.selected_fraction, recipe.seed) == (0.0, 0.3, 42)
    assert (rows, evaluation.precision) == ((200, 450), "auto")
    assert (demo.prepare.recipe.held_out_fraction, demo.prepare.recipe.slice_bytes) == (0.3, 1_000_000)
    assert (demo.pretrain.runtime.evaluate_every_steps, demo.pretrain.runtime.rows_per_micro_batch) == (15, 6)


def test_a_number_as_a_key_changes_an_item_of_a_base_key(mine: str) -> None:
    assert pipeline_of([mine, {"corpus": {"1": "other.txt"}}], {}, None).corpus == ("docs/*.jsonl", "other.txt")
