"""The command line: help, exit codes, and one line for every error that the user can fix."""

import errno
import os
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from longmlm import processes
from longmlm.artifacts.artifact import version
from longmlm.cli import COMMANDS, CPU_DEFAULTS, main
from longmlm.config import parse
from longmlm.errors import DataError
from longmlm.processes import user_errors
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from tests.support.launching import launch_as_second_of_two
from tests.support.prepare_settings import PREPARE, written


@pytest.fixture
def base(tmp_path: Path) -> str:
    return written(tmp_path, "base.toml", PREPARE)


def longmlm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str):
    """Returns the exit code, standard output and standard error of a command that runs no stage."""
    monkeypatch.setattr(sys, "argv", ["longmlm", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"GOMP_SPINCOUNT": "100000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}),
        ({"OMP_WAIT_POLICY": "active"}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}),
        ({"GOMP_SPINCOUNT": "5", "DNNL_PRIMITIVE_CACHE_CAPACITY": "9"}, {}),
        ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9"}, {"GOMP_SPINCOUNT": "100000"}),
    ],
)
def test_idle_threads_sleep_early_and_few_kernels_are_cached_unless_the_user_sets_otherwise(
    given: dict[str, str], added: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    names = [name for names, _ in CPU_DEFAULTS for name in names]
    with monkeypatch.context() as patch:
        for name in names:
            patch.setenv(name, "")  # so that it is restored, whatever main sets
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        longmlm(patch, capsys, "--version")
        assert {name: os.environ[name] for name in names if name in os.environ} == given | added


def test_help_explains_every_field_and_shows_the_values_of_the_file(base: str, monkeypatch, capsys) -> None:
    code, output, errors = longmlm(monkeypatch, capsys, "prepare", base, "--help")
    assert (code, errors) == (0, "")
    text = " ".join(output.split())
    for kind, prefix in ((PrepareRecipe, "recipe."), (Source, "recipe.sources.0."), (Source, "recipe.sources.1.")):
        for item in fields(kind):
            assert f"--{prefix}{item.name.replace('_', '-')} " in text or item.name == "sources"
    for default in ("(default: 512)", "(default: roberta-base)", "(default: de)"):
        assert default in text


def test_help_of_a_stage_shows_the_defaults_that_a_pipeline_file_replaces(base: str, monkeypatch, capsys) -> None:
    def text(*arguments: str) -> str:
        return " ".join(longmlm(monkeypatch, capsys, *arguments, "--help")[1].split())

    assert "(default: 0.01; in a pipeline file: 0.05)" in text("prepare")
    assert "(default: no; in a pipeline file: auto)" in text("evaluate")
    assert "(default: 0.01)" in text("prepare", base)  # no pipeline file
    assert "(default: 0.05)" in text("prepare", "roberta-base")


def test_command_line_lists_the_stages(monkeypatch, capsys) -> None:
    for arguments, expected in (((), 2), (("--help",), 0), (("-h",), 0)):
        code, output, errors = longmlm(monkeypatch, capsys, *arguments)
        assert (code, errors) == (expected, "")
        assert all(stage in output for stage in COMMANDS)
    code, output, errors = longmlm(monkeypatch, capsys, "nonsense")
    assert (code, output) == (2, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert all(command in errors for command in ("nonsense", *COMMANDS))


@pytest.mark.parametrize(("word", "meant"), [("train", "pretrain"), ("export", "release"), ("evalute", "evaluate")])
def test_a_command_that_was_probably_meant_is_named(word: str, meant: str, monkeypatch, capsys) -> None:
    code, _, errors = longmlm(monkeypatch, capsys, word)
    assert code == 2 and f"unknown command {word}, did you mean {meant}?" in errors


def test_version_is_printed(monkeypatch, capsys) -> None:
    assert longmlm(monkeypatch, capsys, "--version") == (0, f"longmlm {version()}\n", "")


@pytest.mark.parametrize("stage", COMMANDS)
def test_every_stage_has_help(stage: str, monkeypatch, capsys) -> None:
    code, output, errors = longmlm(monkeypatch, capsys, stage, "--help")
    assert (code, errors) == (0, "")
    assert f"longmlm {stage} [FILE.toml ...]" in output


@pytest.mark.parametrize("is_stopped", [True, False])
def test_another_process_of_the_machine_prints_its_error_unless_the_first_stops_it(
    monkeypatch, capsys, is_stopped: bool
) -> None:
    def waiting(seconds: float) -> None:
        assert seconds == processes.FIRST_PROCESS_SECONDS
        if is_stopped:
            raise SystemExit(143)

    launch_as_second_of_two(monkeypatch)
    monkeypatch.setattr(processes.time, "sleep", waiting)
    code, output, errors = longmlm(
        monkeypatch, capsys, "pretrain", "--rows", "rows", "--run", "run", "--runtime.hang-seconds", "0"
    )
    if is_stopped:
        assert (code, output, errors) == (143, "", "")
    else:
        assert (code, output, errors.count("\n")) == (2, "", 1)
        assert errors.startswith("error: ") and "hang_seconds must be" in errors
    monkeypatch.setattr(processes.time, "sleep", pytest.fail)  # another command runs in one process
    assert longmlm(monkeypatch, capsys, "prepare", "gone.toml")[0] == 2


def test_an_error_is_printed_although_a_launchers_variable_is_left_over(base: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, output, errors = longmlm(monkeypatch, capsys, "prepare", base, "--recipe.row-length", "2")
    assert (code, output) == (2, "")
    assert errors.startswith("error: recipe.row_length must be")


def run(stage) -> None:
    """Runs a stage with the settings of the command line."""
    with user_errors():
        stage(parse(PrepareConfig, sys.argv[1:]))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("two\n  lines"), "error: two lines\n"),
        (OSError(28, "No space left", "f.arrow"), "the disk is full (f.arrow)"),
        (PermissionError(errno.EACCES, "Permission denied", "rows"), "rows: Permission denied"),
    ],
)
def test_stage_exits_without_a_traceback_on_an_error_that_the_user_can_fix(
    base: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, message: str
) -> None:
    def stage(config: PrepareConfig) -> None:
        assert config.recipe.row_length == 512
        raise error

    monkeypatch.setattr(sys, "argv", ["prepare", base])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        run(stage)
    [line] = capsys.readouterr().err.splitlines(keepends=True)
    assert stop.value.code == 2 and message in line


def test_other_errors_keep_their_traceback(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(config: PrepareConfig) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", config.output)

    monkeypatch.setattr(sys, "argv", ["prepare", base])
    with pytest.raises(FileNotFoundError, match="no such file"):
        run(stage)
