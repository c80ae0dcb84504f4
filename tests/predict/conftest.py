"""A tiny RoBERTa with its long model, and the predict command as a user types it."""

from collections.abc import Callable

import pytest

from tests.support.commands import command
from tests.support.worlds import run_folder, single_thread, world

__all__ = ["command", "run_folder", "single_thread", "world"]


@pytest.fixture
def predicted(command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs longmlm predict, and returns what it prints."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        command("predict", *arguments)
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(command, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs longmlm predict, which must fail with exit code 2 and one line, and returns this line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            command("predict", *arguments)
        out, error = capsys.readouterr()
        assert (stop.value.code, out, error.count("\n")) == (2, "", 1), (out, error)
        return error

    return run
