"""Command line: help without heavy imports, exit codes, and one line for an error of the user."""

import errno
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from longmlm.cli import STAGES, main
from longmlm.config import parse, user_errors
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source

ROOT = Path(__file__).parents[1]
SETTINGS = """
output = "rows"

[recipe]
tokenizer = "roberta-base"
row_length = 512

[[recipe.sources]]
files = ["a.txt", "b/*.txt"]
language = "de"

[[recipe.sources]]
files = ["c.jsonl"]
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    path = tmp_path / "base.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return str(path)


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


def test_help_explains_every_field_and_shows_the_values_of_the_file(base: str, monkeypatch, capsys) -> None:
    code, output, errors = longmlm(monkeypatch, capsys, "prepare", base, "--help")
    assert (code, errors) == (0, "")
    text = " ".join(output.replace("│", " ").split())
    for kind, prefix in ((PrepareRecipe, "recipe."), (Source, "recipe.sources.0."), (Source, "recipe.sources.1.")):
        for item in fields(kind):
            assert f"--{prefix}{item.name.replace('_', '-')} " in text or item.name == "sources"
    for default in ("(default: 512)", "(default: roberta-base)", "(default: de)"):
        assert default in text


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
    assert "longmlm.settings.prepare" in loaded
    assert not {"torch", "transformers", "datasets", "datatrove", "tokenizers", "numpy", "pyarrow"} & set(loaded)


def longmlm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str):
    """Returns the exit code, the output and the errors of a command that runs no stage."""
    monkeypatch.setattr(sys, "argv", ["longmlm", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


def test_the_command_line_names_the_stages(monkeypatch, capsys) -> None:
    for arguments, expected in (((), 2), (("--help",), 0), (("-h",), 0)):
        code, output, errors = longmlm(monkeypatch, capsys, *arguments)
        assert (code, errors) == (expected, "")
        assert all(stage in output for stage in STAGES)
    code, output, errors = longmlm(monkeypatch, capsys, "nonsense")
    assert (code, output) == (2, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert all(stage in errors for stage in ("nonsense", *STAGES))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_help(stage: str, monkeypatch, capsys) -> None:
    code, output, errors = longmlm(monkeypatch, capsys, stage, "--help")
    assert (code, errors) == (0, "")
    assert f"longmlm {stage} [FILE.toml ...]" in output


def test_a_users_error_is_one_line_and_exit_code_two(base: str, monkeypatch, capsys) -> None:
    arguments = ("prepare", base, "--recipe.row-length", "2")
    code, output, errors = longmlm(monkeypatch, capsys, *arguments)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: recipe: row_length must be")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert longmlm(monkeypatch, capsys, *arguments) == (2, "", "")


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
