"""longmlm inspect as a user's shell starts it: quickly, and in colours on a terminal."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.terminal import terminal
from tests.support.training import SOURCES
from tests.support.worlds import World

SCRIPT = """
import sys, longmlm.cli
longmlm.cli.main()
print(*sys.modules, file=sys.stderr)
"""


def test_rows_are_shown_without_torch_and_without_colours_off_a_terminal(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, "inspect", str(world.rows), "--split", "held_out", "--find", "the"]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    views = ["--views", "whole", "chunks", "--base", str(world.base)]
    done = subprocess.run([*command, *views], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "chunk 2 of " in done.stdout and "\x1b" not in done.stdout
    imported = set(done.stderr.split())
    assert {"longmlm.inspect.command", "datasets"} <= imported
    assert not {"torch", "transformers", "accelerate", "matplotlib"} & imported


def test_a_terminal_shows_colours(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "longmlm", "inspect", str(world.rows), "--row", "0"]
    with terminal(command, tmp_path) as screen:
        assert screen.finish(60) == 0
    assert "\x1b[30;43m" in screen.written and "\x1b[0m" in screen.written
    with terminal(["env", "NO_COLOR=1", *command], tmp_path) as screen:
        assert screen.finish(60) == 0
    assert "\x1b" not in screen.written and "[replaced by a mask]" in screen.written
