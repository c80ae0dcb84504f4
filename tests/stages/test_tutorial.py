"""The commands and the code of the tutorial run as they are printed, in an empty folder, offline."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support import precision
from tests.support.commands import Command, command
from tests.support.pages import ROOT, Page
from tests.support.walkthrough import walk_through

__all__ = ["command"]


@pytest.fixture
def run(command: Command, capsys: pytest.CaptureFixture[str]):
    """Runs a command or a block of Python in this process, and returns its output or writes it to a file."""

    def run(language: str, text: str) -> str:
        capsys.readouterr()
        if language == "python":
            exec(compile(text, "page", "exec"), {})
            return capsys.readouterr().out
        line, _, file = text.partition(" > ")
        try:
            command(*shlex.split(line, comments=True)[1:])
        except SystemExit as stop:
            if stop.code:
                raise
        output = capsys.readouterr().out
        if file:
            Path(file).write_text(output, encoding="utf-8")
        return output

    return run


@pytest.mark.parametrize("auto_precision", precision.said("0"), indirect=True)  # minutes where bf16 is emulated
def test_tutorial(tmp_path: Path, run, auto_precision) -> None:
    page = Page(ROOT / "docs" / "tutorial.md")
    outputs = walk_through(page, tmp_path, run)
    assert "held_out_fraction = 0.3" in (tmp_path / "small.toml").read_text()
    prepare, extend = "longmlm prepare mine.toml small.toml", "longmlm extend mine.toml small.toml"
    assert _up_to_speed(outputs[prepare]) == _up_to_speed(_printed(page, prepare))
    assert _of_all_machines(outputs[extend]) == _of_all_machines(_printed(page, extend))
    assert (tmp_path / "out" / "mine" / "release" / "README.md").is_file()
    assert (tmp_path / "zh.toml").is_file()


def _printed(page: Page, command: str) -> str:
    """Returns the output that the page shows for a command."""
    blocks = [content for _, content in page.blocks]
    return blocks[blocks.index(f"{command}\n") + 1]


def _of_all_machines(output: str) -> str:
    """Returns the output of extend without the three numbers that the distillation decides."""
    masked, count = re.subn(r"[\d,]+(?= tokens, mat)|(?<=new )[\d.]+|(?<=tokens: )[\d.]+", "N", output)
    assert count == 3
    return masked


def _up_to_speed(output: str) -> str:
    """Returns the lines of prepare's report that are the same on every machine."""
    report, _, _ = output.partition("records set aside")
    assert "fill rate" in report
    return report
