"""Commands as a user types them, executed in this process, which takes a tenth of the time."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm import cli
from longmlm.runtime.children import Ended
from longmlm.stages import run
from tests.support.tiny import prove_in_this_process, with_fresh_process_state

Command = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command as a user does, but in this process, in a folder of its own; the stages of `run` too."""
    monkeypatch.chdir(tmp_path)

    def execute(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["longmlm", *map(str, arguments)])
        with_fresh_process_state()
        try:
            cli.main()
        finally:
            with_fresh_process_state()

    def run_stage_process(stage: str, settings: object, _environment: object) -> Ended:
        with_fresh_process_state()
        cli.run_command(stage, settings)
        return Ended(0)

    monkeypatch.setattr(run, "run_stage_process", run_stage_process)
    prove_in_this_process(monkeypatch)
    return execute


@pytest.fixture
def printed(command: Command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, and returns what it prints."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        command(*arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refusal(command: Command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which must fail with exit code 2 and one line, and returns this line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            command(*arguments)
        out, error = capsys.readouterr()
        assert (stop.value.code, out, error.count("\n")) == (2, "", 1), (out, error)
        return error

    return run
