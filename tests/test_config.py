"""Settings: files merged in order, command-line overrides, and one line that names every mistake."""

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.artifacts.artifact import to_toml
from longmlm.config import STAGES, parse, read
from longmlm.errors import ConfigError
from longmlm.options import named_fields, sections
from longmlm.settings.checkpoints import CheckpointsConfig
from longmlm.settings.masking import Masking
from longmlm.settings.pipeline import ResolvedPipeline, RunConfig
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.settings.shipped import BUNDLED, SHIPPED
from longmlm.settings.tables import default_of
from longmlm.validation import adapter_of
from tests.support.prepare_settings import PREPARE, written


@pytest.fixture
def base(tmp_path: Path) -> str:
    return written(tmp_path, "base.toml", PREPARE)


def refusal(*arguments: str) -> str:
    """Returns the one-line message of the ConfigError that the arguments raise."""
    with pytest.raises(ConfigError) as raised:
        parse(PrepareConfig, arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_settings_of_the_file_and_defaults_for_the_rest(base: str) -> None:
    config = parse(PrepareConfig, [base])
    assert (config.output, config.recipe.tokenizer, config.recipe.row_length) == ("rows", "roberta-base", 512)
    assert config.recipe.sources == (Source(files=("a.txt", "b/*.txt"), language="de"), Source(files=("c.jsonl",)))
    assert (config.recipe.packing, config.recipe.held_out_fraction) == ("full-sentences", 0.01)
    assert config.runtime.num_workers is None


def test_later_files_win_and_keep_the_keys_that_they_do_not_set(base: str, tmp_path: Path) -> None:
    longer = written(tmp_path, "longer.toml", "recipe.row_length = 1536\n")
    other = written(tmp_path, "other.toml", 'recipe.row_length = 2048\n[[recipe.sources]]\nfiles = ["d.txt"]\n')
    assert parse(PrepareConfig, [base, longer]).recipe.row_length == 1536
    assert parse(PrepareConfig, [longer, base]).recipe.row_length == 512
    assert parse(PrepareConfig, [base, other, longer]).recipe.row_length == 1536
    assert parse(PrepareConfig, [base, other]).recipe.sources == (Source(files=("d.txt",)),)
    assert parse(PrepareConfig, [base, longer]).recipe.sources == parse(PrepareConfig, [base]).recipe.sources


def test_tables_are_merged_key_by_key(tmp_path: Path) -> None:
    shipped = SHIPPED / "roberta-mini.toml"
    overlay = Path(written(tmp_path, "overlay.toml", "[pretrain.recipe]\nseed = 77\n"))
    before, after = read(PretrainConfig, [shipped]), read(PretrainConfig, [shipped, overlay])
    assert after.recipe.seed == 77 != before.recipe.seed
    changed = {item.name for item in fields(before.recipe) if _differs(before.recipe, after.recipe, item.name)}
    assert changed == {"seed"}
    assert {item.name for item in fields(before) if _differs(before, after, item.name)} == {"recipe"}


def _differs(before: object, after: object, name: str) -> bool:
    return getattr(before, name) != getattr(after, name)


def test_an_override_wins_over_every_file(base: str, tmp_path: Path) -> None:
    longer = written(tmp_path, "longer.toml", "recipe.row_length = 1536\n")
    assert parse(PrepareConfig, [base, longer, "--recipe.row-length", "64"]).recipe.row_length == 64
    assert parse(PrepareConfig, [base, "--recipe.packing", "doc-sentences"]).recipe.packing == "doc-sentences"
    assert parse(PrepareConfig, [base, "--recipe.row_length=64"]).recipe.row_length == 64


def test_the_last_option_of_a_setting_counts() -> None:
    assert parse(ResolvedPipeline, ["demo", "--length", "640", "--length=768"]).length == 768
    on, off = "--pretrain.runtime.activation-checkpointing", "--pretrain.runtime.no-activation-checkpointing"
    for options, expected in (([off, on], True), ([on, off], False)):
        runtime = parse(ResolvedPipeline, ["demo", *options]).pretrain.runtime
        assert runtime.activation_checkpointing is expected


def test_an_override_reaches_into_one_table_of_an_array(base: str) -> None:
    config = parse(
        PrepareConfig, [base, "--recipe.sources.1.text-field", "body", "--recipe.sources.0.files", "x.txt", "y.txt"]
    )
    assert config.recipe.sources[0] == Source(files=("x.txt", "y.txt"), language="de")
    assert config.recipe.sources[1] == Source(files=("c.jsonl",), text_field="body")


@pytest.mark.parametrize("kind", [RunConfig, *STAGES])
def test_the_default_of_every_setting_is_within_its_bounds(kind: type) -> None:
    for name, item in named_fields(kind):
        if not any(sections(item)) and (default := default_of(item)) is not MISSING:
            assert adapter_of(item.type).validate_json(json.dumps(default)) == default, name


def test_missing_file_is_named(base: str, tmp_path: Path) -> None:
    for name in (tmp_path / "absent.toml", tmp_path, Path(base) / "below.toml"):
        assert f"{name}: no such TOML file" in refusal(base, str(name))


@pytest.mark.parametrize("content", [b"row_length = = 3", b"[sources", b"a = 1\na = 2", b"\xff\xfe", b"{}"])
def test_invalid_toml_is_named(base: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    assert f"{tmp_path}/bad.toml is not valid TOML" in refusal(base, f"{tmp_path}/bad.toml")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--recipe.row-lenght", "9"], ["--recipe.row-lenght", "--recipe.row-length"]),
        (["--recipe.row-length", "2"], ["recipe.row_length must be"]),
        (["--card.title", "t", "--public"], ["public needs publish"]),
        (["--row-length", "9"], ["--row-length", "--recipe.row-length"]),
        (["--recipe.packing", "all"], ["all", "full-sentences", "doc-sentences"]),
        (["--recipe.sources.2.language", "en"], ["--recipe.sources.2.language"]),
        (["--recipe.row-length", "9", "more.toml"], ["more.toml"]),
    ],
)
def test_wrong_override_is_named(base: str, arguments: list[str], parts: list[str]) -> None:
    message = refusal(base, *arguments)
    assert all(part in message for part in parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe.learning_rate=abc"], "--recipe.learning-rate expects a number, not abc"),
        (["--recipe.num-steps"], "--recipe.num-steps expects an integer, not nothing"),
        (["--recipe.precision", "x"], "--recipe.precision expects one of auto, no, fp16, bf16, not x"),
        (["--dry-run", "3"], "--dry-run takes no value: remove 3"),
        (
            ["--recipe.learning-rate", "-1e-5"],
            "unknown option -1e-5 (write a value that begins with - as --name=VALUE)",
        ),
        (
            ["--recipe.learning-rat", "1e-4", "--zzz"],
            "unknown option --recipe.learning-rat, did you mean --recipe.learning-rate?; unknown option --zzz",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_it_expects(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(PretrainConfig, arguments)
    assert str(raised.value) == message


def test_command_without_a_file_names_the_missing_settings() -> None:
    message = refusal()
    assert all(option in message for option in ("--output", "--recipe.tokenizer", "--recipe.row-length", "TOML file"))


def test_options_alone_are_enough() -> None:
    options = ["--output", "rows", "--recipe.tokenizer", "t", "--recipe.row-length", "512"]
    assert "no text: " in refusal(*options)
    assert parse(PrepareConfig, [*options, "--recipe.sources.0.files", "a.txt"]).recipe.sources[0].files == ("a.txt",)
    config = parse(PrepareConfig, [*options, "--recipe.sources.0.files", "docs/*.jsonl", "more.txt"])
    assert config.recipe.sources == (Source(files=("docs/*.jsonl", "more.txt")),)
    assert (config.output, config.recipe.row_length) == ("rows", 512)


def test_an_option_may_complete_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "part.toml", "[recipe]\ntokenizer = 't'\nsources = [{files = ['a']}]\n")
    assert "output is missing" in refusal(path, "--recipe.row-length", "64")
    assert parse(PrepareConfig, [path, "--output", "o", "--recipe.row-length", "64"]).recipe.tokenizer == "t"


TEXT = st.text(max_size=8).filter(lambda text: not text.startswith((BUNDLED, "~")))


@settings(deadline=None, max_examples=50)
@given(
    output=TEXT,
    row_length=st.integers(3, 10**9),
    fraction=st.floats(1e-9, 0.999),
    sources=st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT, TEXT), min_size=1, max_size=3),
)
def test_settings_survive_a_round_trip_through_toml(
    tmp_path_factory: pytest.TempPathFactory, output: str, row_length: int, fraction: float, sources: list[tuple]
) -> None:
    config = PrepareConfig(
        output=output,
        recipe=PrepareRecipe(
            tokenizer="t",
            row_length=row_length,
            held_out_fraction=fraction,
            sources=tuple(
                Source(files=tuple(files), text_field=field, language=code) for files, field, code in sources
            ),
        ),
    )
    path = tmp_path_factory.getbasetemp() / "again.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert read(PrepareConfig, [path]) == config


def test_none_is_left_out_of_the_toml_and_none_again(tmp_path: Path) -> None:
    for masking in (Masking(), Masking(mask_patterns=10)):
        toml = to_toml(masking)
        assert ("mask_patterns" in toml) == (masking.mask_patterns is not None)
        assert read(Masking, [Path(written(tmp_path, "masking.toml", toml))]) == masking


def test_a_run_is_named_without_an_option_but_once() -> None:
    assert parse(CheckpointsConfig, ["out/run", "--action", "verify"]).run == "out/run"
    assert parse(CheckpointsConfig, [str(SHIPPED / "demo.toml")]).run == "out/demo/run"
    for arguments in (["a", "b"], ["a", "--run", "b"], ["a", "--run=b"]):
        with pytest.raises(ConfigError, match=r"^a and (b|--run|--run=b) are both run: name one$"):
            parse(CheckpointsConfig, arguments)
