"""Progress is a bar on a terminal, and dated lines without control characters elsewhere."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, nullcontext, redirect_stderr
from types import SimpleNamespace

import pytest

from longmlm import progress
from longmlm.progress import Progress, dated_line, hide_bars_off_terminal

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@contextmanager
def terminal(columns=120):
    """A terminal as standard error; yields a function that returns what was written to it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, redirect_stderr(stream):
        yield lambda: b"".join(chunks(ours)).decode()
    os.close(ours)


def chunks(descriptor):
    """Yields what is written until nothing is for a while: the system passes it on bit by bit."""
    while select.select([descriptor], [], [], 0.3)[0]:
        yield os.read(descriptor, 65536)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime))
    return now


def test_a_report_off_a_terminal_is_one_dated_line_with_the_time_left(capsys, clock):
    with Progress("step", 3000, "step", initial=100) as bar:
        clock[0] += 40
        bar.report(120, "loss 2.310 accuracy 55.1 % lr 4.8e-05 12,345 tokens/s")
    output, lines = capsys.readouterr()
    text = r"step 120/3000 loss 2\.310 accuracy 55\.1 % lr 4\.8e-05 12,345 tokens/s 1:36:00 left"
    assert re.fullmatch(rf"{STAMP} {text}\n", lines)
    assert output == ""


def test_counted_units_off_a_terminal_give_a_line_per_share_but_not_more_often_than_every_few_seconds(capsys, clock):
    with Progress("prepare", 1000, "B", initial=200) as bar:
        for _ in range(80):
            clock[0] += 1
            bar.advance(10)
    lines = capsys.readouterr().err.splitlines()
    shares = [re.fullmatch(rf"{STAMP} prepare (\d+) % (\S+) left", line).groups() for line in lines]
    assert [int(share) for share, _ in shares] == [30, 40, 50, 60, 70, 80, 90, 100]
    assert [left for _, left in shares][:3] == ["0:01:10", "0:01:00", "0:00:50"]
    with Progress("prepare", 1000, "B") as bar:
        for _ in range(10):
            clock[0] += 100
            bar.advance(100)
    assert len(capsys.readouterr().err.splitlines()) == 10


def test_items_are_counted_and_a_progress_that_is_not_shown_prints_nothing(capsys, clock):
    with Progress("evaluate", 4, "row", is_shown=False) as bar:
        for index, item in enumerate(bar.over("abcd")):
            assert (item, bar.done) == ("abcd"[index], index)
            clock[0] += 100
        bar.report(4, "everything")
    assert bar.done == 4
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar_with_speed_and_time_left():
    with terminal() as written, Progress("step", 8, "step") as bar:
        bar.bar.mininterval = 0
        bar.move_to(2, "loss 2.31, 12,345 tok/s")
        bar.report(2, "the means since the line before")
        dated_line("held-out accuracy 55.10 %")
        shown = written()
    assert re.search(r"\rstep:  25%\|.*2/8 \[\d\d:\d\d left, loss 2\.31, 12,345 tok/s\]", shown)
    assert re.search(rf"\r{STAMP} held-out accuracy 55\.10 %\r\n", shown)
    assert "the means" not in shown


def test_a_line_fits_a_narrow_terminal_and_an_inner_bar_takes_the_place_of_the_outer_one():
    text = "loss 2.31 accuracy 55 %, 12,345 tok/s"
    with terminal(columns=80) as written:
        with Progress("step", 100_000, "step") as outer:
            outer.bar.mininterval = 0
            outer.move_to(12_345, text)
            with Progress("evaluate", 4, "row") as inner:
                inner.bar.mininterval = 0
                inner.advance()
                dated_line("in between")
                outer.bar.refresh()
            outer.move_to(12_346, text)
        shown = written()
    lines = [line for line in re.split("[\r\n]+", shown) if line.strip()]
    assert max(map(len, lines)) <= 80 and "\x1b[A" not in shown
    kinds = [line.partition(":")[0] for line in lines if line.startswith(("step:", "evaluate:"))]
    first, last = kinds.index("evaluate"), len(kinds) - kinds[::-1].index("evaluate")
    assert 0 < first < last < len(kinds) and {*kinds[first:last]} == {"evaluate"}
    assert f"left, {text}]" in shown and "12346/100000" in shown


@pytest.mark.parametrize("is_terminal", [False, True])
def test_bars_of_libraries_are_hidden_off_a_terminal_only(is_terminal, monkeypatch):
    for name in progress.BARS_OF_LIBRARIES:
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    with terminal() if is_terminal else nullcontext():
        hide_bars_off_terminal()
    assert [name in os.environ for name in progress.BARS_OF_LIBRARIES] == [not is_terminal] * 3


def test_no_library_draws_a_bar_into_a_pipe():
    """The check has a guard: without the call, the bars are drawn."""
    bars = (
        "from tqdm.auto import tqdm as auto; from huggingface_hub.utils import tqdm as hub; "
        "from datasets.utils import tqdm as datasets; "
        "[list(bar(range(3))) for bar in (auto, hub, datasets)]"
    )
    environment = {name: value for name, value in os.environ.items() if name not in progress.BARS_OF_LIBRARIES}
    drawn = []
    for first in ("", "from longmlm.progress import hide_bars_off_terminal as hide; hide(); "):
        command = [sys.executable, "-c", first + bars]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        drawn.append(process.stderr.count("3/3"))
    assert drawn == [3, 0]


def test_moving_prints_no_line_off_a_terminal(capsys, clock):
    with Progress("step", 10, "step") as bar:
        for step in range(1, 11):
            clock[0] += 100
            bar.move_to(step)
        assert bar.done == 10
    assert capsys.readouterr() == ("", "")


def test_a_bar_shows_the_time_that_passes_within_a_step(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_TICKS", 0.01)
    with terminal() as written:
        with Progress("step", 8, "step"):
            time.sleep(0.3)
        shown = written()
    assert shown.count("0/8") > 5
