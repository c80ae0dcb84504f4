"""Settings: files merged in order, overrides above them, and one clear line for whatever is wrong."""

import errno
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.config import parse, read, to_toml, user_errors
from longmlm.errors import ConfigError, DataError
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source

ROOT = Path(__file__).parents[1]
BASE = """
output = "rows"
tokenizer = "roberta-base"
row_length = 512

[[sources]]
files = ["a.txt", "b/*.txt"]
language = "de"

[[sources]]
files = ["c.jsonl"]
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    return written(tmp_path, "base.toml", BASE)


def written(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


def refusal(*arguments: str) -> str:
    """Returns the message with which the arguments are refused, which is one line."""
    with pytest.raises(ConfigError) as raised:
        parse(PrepareConfig, arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_file_gives_what_it_says_and_defaults_for_the_rest(base: str) -> None:
    config = parse(PrepareConfig, [base])
    assert (config.output, config.tokenizer, config.row_length) == ("rows", "roberta-base", 512)
    assert config.sources == (Source(files=("a.txt", "b/*.txt"), language="de"), Source(files=("c.jsonl",)))
    assert (config.packing, config.held_out_fraction, config.num_workers) == ("full-sentences", 0.01, 1)


def test_later_files_win_and_leave_what_they_do_not_name(base: str, tmp_path: Path) -> None:
    longer = written(tmp_path, "longer.toml", "row_length = 1536\n")
    other = written(tmp_path, "other.toml", 'row_length = 2048\n[[sources]]\nfiles = ["d.txt"]\n')
    assert parse(PrepareConfig, [base, longer]).row_length == 1536
    assert parse(PrepareConfig, [longer, base]).row_length == 512
    assert parse(PrepareConfig, [base, other, longer]).row_length == 1536
    assert parse(PrepareConfig, [base, other]).sources == (Source(files=("d.txt",)),)
    assert parse(PrepareConfig, [base, longer]).sources == parse(PrepareConfig, [base]).sources


def test_tables_are_merged_key_by_key(tmp_path: Path) -> None:
    from longmlm.settings.pretrain import PretrainConfig

    shipped = ROOT / "configs" / "pretrain" / "scratch-mini.toml"
    overlay = Path(written(tmp_path, "overlay.toml", "[recipe]\nseed = 77\n"))
    before, after = read(PretrainConfig, [shipped]), read(PretrainConfig, [shipped, overlay])
    assert after.recipe.seed == 77 != before.recipe.seed
    changed = {item.name for item in fields(before.recipe) if _differs(before.recipe, after.recipe, item.name)}
    assert changed == {"seed"}
    assert {item.name for item in fields(before) if _differs(before, after, item.name)} == {"recipe"}


def _differs(before: object, after: object, name: str) -> bool:
    return getattr(before, name) != getattr(after, name)


def test_an_override_wins_over_every_file(base: str, tmp_path: Path) -> None:
    longer = written(tmp_path, "longer.toml", "row_length = 1536\n")
    assert parse(PrepareConfig, [base, longer, "--recipe.row-length", "64"]).row_length == 64
    assert parse(PrepareConfig, [base, "--recipe.packing", "doc-sentences"]).packing == "doc-sentences"
    assert parse(PrepareConfig, [base, "--row_length=64"]).row_length == 64


def test_an_override_reaches_into_one_table_of_an_array(base: str) -> None:
    config = parse(
        PrepareConfig, [base, "--recipe.sources.1.text-field", "body", "--recipe.sources.0.files", "x.txt", "y.txt"]
    )
    assert config.sources[0] == Source(files=("x.txt", "y.txt"), language="de")
    assert config.sources[1] == Source(files=("c.jsonl",), text_field="body")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("rowlength = 9", "unknown key rowlength, did you mean row_length?"),
        ("tokeniser = 'x'", "unknown key tokeniser, did you mean tokenizer?"),
        ("[[sources]]\nfiles = ['a']\ntextfield = 'b'", "unknown key sources.0.textfield, did you mean text_field?"),
        ("zzzzz = 1", "unknown key zzzzz"),
        ("row_length = '512'", "row_length: Input should be a valid integer"),
        ("row_length = 512.5", "row_length: "),
        ("row_length = true", "row_length: Input should be a valid integer"),
        ("output = 7", "output: Input should be a valid string"),
        ("packing = 'sentences'", "packing: Input should be 'full-sentences' or 'doc-sentences'"),
        ("[[sources]]\nfiles = 'a.txt'", "sources.0.files: "),
        ("[[sources]]\nfiles = []", "sources.0: a source needs either at least one path in `files` or a `dataset`"),
        (
            "[[sources]]\nlanguage = 'en'",
            "sources.0: a source needs either at least one path in `files` or a `dataset`",
        ),
        ("[sources]\nfiles = ['a']", "sources: "),
        ("row_length = 2", "row_length must be at least 3"),
        ("held_out_fraction = 1", "held_out_fraction must lie between 0 and 1"),
        ("held_out_fraction = nan", "held_out_fraction must lie between 0 and 1"),
        ("num_workers = 0", "slice_bytes and num_workers must be at least 1"),
    ],
)
def test_a_wrong_key_type_or_value_is_named_with_its_file(base: str, tmp_path: Path, wrong: str, message: str) -> None:
    name = written(tmp_path, "wrong.toml", wrong)
    told = refusal(base, name)
    assert name in told
    assert message in told


def test_all_that_is_wrong_is_told_at_once_and_the_misspelt_key_first(tmp_path: Path) -> None:
    told = refusal(written(tmp_path, "bad.toml", "outptu = 'rows'\nrow_length = 'long'\n"))
    parts = ["unknown key outptu, did you mean output?", "output is missing", "row_length: ", "tokenizer is missing"]
    assert all(part in told for part in parts)
    assert told.index(parts[0]) < min(told.index(part) for part in parts[1:])


def test_a_file_that_is_not_there_is_named(base: str, tmp_path: Path) -> None:
    for name in (tmp_path / "absent.toml", tmp_path, Path(base) / "below.toml"):
        assert f"{name}: no such TOML file" in refusal(base, str(name))


@pytest.mark.parametrize("content", [b"row_length = = 3", b"[sources", b"a = 1\na = 2", b"\xff\xfe", b"{}"])
def test_a_file_that_is_no_toml_is_named(base: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    assert f"{tmp_path}/bad.toml is no TOML" in refusal(base, f"{tmp_path}/bad.toml")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--recipe.row-lenght", "9"], ["--recipe.row-lenght", "--recipe.row-length"]),
        (["--recipe.row-length", "nine"], ["--recipe.row-length", "nine"]),
        (["--recipe.row-length"], ["--recipe.row-length"]),
        (["--recipe.row-length", "2"], ["row_length must be at least 3"]),
        (["--recipe.packing", "all"], ["all", "full-sentences", "doc-sentences"]),
        (["--recipe.sources.2.language", "en"], ["--recipe.sources.2.language"]),
        (["--recipe.row-length", "9", "more.toml"], ["more.toml"]),
    ],
)
def test_an_override_that_cannot_be_is_named(base: str, arguments: list[str], parts: list[str]) -> None:
    told = refusal(base, *arguments)
    assert all(part in told for part in parts)


def test_a_command_without_a_file_says_what_it_needs() -> None:
    told = refusal()
    assert "--output" in told
    assert "name a TOML file first" in told


TEXT = st.text(max_size=8)


@settings(deadline=None, max_examples=50)
@given(
    output=TEXT,
    row_length=st.integers(3, 10**9),
    fraction=st.floats(1e-9, 0.999),
    sources=st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT, TEXT), min_size=1, max_size=3),
)
def test_settings_written_as_toml_are_read_back_the_same(
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


def test_an_absent_value_is_left_out_of_the_toml_and_absent_again(tmp_path: Path) -> None:
    from longmlm.settings.masking import Masking

    for masking in (Masking(), Masking(mask_patterns=10)):
        toml = to_toml(masking)
        assert ("mask_patterns" in toml) == (masking.mask_patterns is not None)
        assert read(Masking, [Path(written(tmp_path, "masking.toml", toml))]) == masking


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
    )


def test_help_explains_every_field_and_shows_the_values_of_the_file(base: str) -> None:
    answer = command("-m", "longmlm", "prepare", base, "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    told = " ".join(answer.stdout.replace("│", " ").split())
    for item in fields(PrepareConfig):
        option = f"--{item.name.replace('_', '-')}"
        assert f"{option} " in told or f"{option}, --no" in told or item.name == "sources"
    for number in (0, 1):
        for item in fields(Source):
            assert f"--recipe.sources.{number}.{item.name.replace('_', '-')} " in told
    for line in ("Tokens a row, both special tokens included. (default: 512)", "(default: roberta-base)"):
        assert line in told
    assert "Field or column that holds the text." in told
    assert "(default: de)" in told


def test_help_answers_without_a_heavy_import(base: str) -> None:
    script = (
        "import sys, longmlm.cli\n"
        f"sys.argv = ['longmlm', 'prepare', {base!r}, '--help']\n"
        "try:\n    longmlm.cli.main()\n"
        "except SystemExit as stop:\n    print('loaded:', *sorted(sys.modules), file=sys.stderr); sys.exit(stop.code)\n"
    )
    answer = command("-c", script)
    assert answer.returncode == 0
    loaded = answer.stderr.removeprefix("loaded: ").split()
    assert "longmlm.settings" in loaded
    assert not {"torch", "transformers", "datasets", "datatrove", "tokenizers", "numpy", "pyarrow"} & set(loaded)


def test_a_users_error_is_one_line_and_exit_code_two(base: str) -> None:
    answer = command("-m", "longmlm", "prepare", base, "--recipe.row-length", "2")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert (
        answer.stderr == "error: Error parsing PrepareConfig: row_length must be at least 3: "
        "two special tokens and one of text\n"
    )
    silent = command("-m", "longmlm", "prepare", base, "--recipe.row-length", "2", LOCAL_RANK="1")
    assert (silent.returncode, silent.stderr) == (2, "")


def run(stage) -> None:
    """Runs a stage with the settings of the command line."""
    with user_errors():
        stage(parse(PrepareConfig, sys.argv[1:]))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError("two\n  lines"), "error: two lines\n"),
        (OSError(28, "No space left", "f.arrow"), "the disk is full (f.arrow)"),
    ],
)
def test_a_stage_ends_on_an_error_of_the_user_without_a_traceback(
    base: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    def stage(config: PrepareConfig) -> None:
        assert config.recipe.row_length == 512
        raise error

    monkeypatch.setattr(sys, "argv", ["prepare", base])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(SystemExit) as stopped:
        run(stage)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_an_error_of_the_program_keeps_its_traceback(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(config: PrepareConfig) -> None:
        raise OSError(errno.EIO, "input/output error", config.output)

    monkeypatch.setattr(sys, "argv", ["prepare", base])
    with pytest.raises(OSError, match="input/output"):
        run(stage)


def test_a_path_that_cannot_be_used_is_one_line(base: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def stage(config: PrepareConfig) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", config.output)

    monkeypatch.setattr(sys, "argv", ["prepare", base])
    with pytest.raises(SystemExit) as stop:
        run(stage)
    said = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert len(said) == 1 and "rows: Permission denied" in said[0]
