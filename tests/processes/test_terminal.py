"""What a person sees on a terminal: bars and lines that do not overwrite each other, and an answer to Ctrl-C."""

import re
import sys
import time
from pathlib import Path

import pytest

from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.terminal import CTRL_C, Terminal, terminal, wait_until_gone
from tests.support.tiny import tiny_project
from tests.support.training import training_lines

COLUMNS = 80
PARENT = """
import os, sys
from longmlm.runtime.children import run_child
print("[1/1] work: started", flush=True)
code, signal_name, _ = run_child([sys.executable, "child.py"], os.environ)
print(f"[1/1] work: {code} {signal_name}", flush=True)
"""
CHILD = """
import subprocess, sys, time
from pathlib import Path
from longmlm.progress import Progress, dated_line
from longmlm.runtime.signals import stop_on_signal
if not Path("saves").exists():
    Path("grandchild").write_text(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid))
with stop_on_signal("finishing step 7, then saving") as stop, Progress("step", 1000, "step") as progress:
    for step in range(1, 1000):
        time.sleep(0.05)
        progress.move_to(step)
        if step % 5 == 0:
            progress.move_to(step, "loss 2.31 accuracy 55 %, 12,345 tok/s")
        if step % 9 == 0:
            dated_line(f"held-out accuracy at step {step}")
        if stop and Path("saves").exists():
            break
print("stopped after step", step)
"""


def assert_nothing_overwritten(screen: list[str]) -> None:
    """Checks that no line holds a part of another one."""
    for line in screen:
        kinds = ("step:", "[1/1] ", "held-out", "finishing step", "ended without saving")
        kinds = [kind for kind in kinds if kind in line]
        assert len(kinds) <= 1, line
        assert line.count("step:") <= 1 and not re.search(r"it/s.*it/s", line), line


def test_a_bar_moves_with_every_step_and_ctrl_c_is_answered_at_once(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "saves").touch()
    with terminal([sys.executable, "parent.py"], tmp_path, COLUMNS) as screen:
        screen.wait_for(r"(?s)step: .*held-out accuracy at step 9\b.*held-out accuracy at step 18\b.*step:")
        screen.type(CTRL_C)
        assert screen.wait_for("finishing step 7, then saving; press Ctrl-C again to end without saving\r\n") < 1
        assert screen.finish() == 0
    lines = screen.screen()
    assert_nothing_overwritten(lines)
    steps = [int(step) for step in re.findall(r"\b(\d+)/1000 ", screen.written)]
    assert len(set(steps)) > 10 and max(map(len, lines)) <= COLUMNS
    assert lines[-2:] == ["[1/1] work: 0 SIGINT", ""]
    assert lines[-3].startswith("stopped after step")


def test_a_second_ctrl_c_stops_parent_and_child_and_what_the_child_started(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text(CHILD)
    with terminal([sys.executable, "parent.py"], tmp_path) as screen:
        screen.wait_for("held-out accuracy")
        screen.type(CTRL_C)
        screen.wait_for("press Ctrl-C again")
        time.sleep(0.3)
        screen.type(CTRL_C)
        assert screen.wait_for(r"work: -9 SIGINT") < 2
        assert screen.finish() == 0
    assert_nothing_overwritten(screen.screen())
    assert wait_until_gone(int((tmp_path / "grandchild").read_text()))


RUN = [sys.executable, "-m", "longmlm", "run", "mine.toml", "--until", "pretrain"]
RUN += ["--pretrain.runtime.log-every-steps", "50"]


def run_to_steps(folder: Path) -> Terminal:
    with terminal(RUN, folder, COLUMNS) as screen:
        screen.wait_for(r"step: .* 2\d/100000 ")
        screen.type(CTRL_C)
        assert screen.wait_for(r"finishing step \d+, then saving; press Ctrl-C again to end without saving") < 2
        assert screen.finish() == 130
    return screen


@pytest.mark.slow
def test_a_pipeline_on_a_terminal_is_stopped_and_resumed(tmp_path: Path) -> None:
    tiny_project(tmp_path)
    screen = run_to_steps(tmp_path)
    run = tmp_path / "out" / "run"
    last = training_lines(run)[-1].step
    assert newest_verified(run).folder == checkpoint_folder(run, last)
    for line in screen.screen():
        assert ("[3/3] pretrain" in line) + ("step:" in line) <= 1, line
    assert "SIGTERM" not in screen.written
    assert screen.screen()[-2] == "[3/3] pretrain: stopped by SIGINT: the same command resumes from there"
    drawn = [int(step) for step in re.findall(r"\b(\d+)/100000 ", screen.written)]
    assert len({*drawn}) > 3 and any(step % 50 for step in drawn)  # a line is logged every 50 steps
    with terminal(RUN, tmp_path, COLUMNS) as screen:
        screen.wait_for(rf"resuming after step {last}, from out/run/checkpoints/step-{last:08d}\r\n")
        screen.wait_for(rf"step: .* {last + 1}/100000 ")
        screen.type(CTRL_C)
        screen.wait_for("press Ctrl-C again")
        screen.type(CTRL_C)
        assert screen.finish() == 130
