"""A process on a terminal of its own: what a person types, and what stands on the screen."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.training import SOURCES

CTRL_C = "\x03"
ON_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)
ERASED = "\x1b[K"


class Terminal:
    """The terminal of one process; `written` is all that was written to it."""

    def __init__(self, process: subprocess.Popen, descriptor: int) -> None:
        self.process, self.descriptor, self.written = process, descriptor, ""

    def read(self, seconds: float = 0.05) -> bool:
        """Reads what is written within some time; returns whether the process may still write."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return self.process.poll() is None
        try:
            self.written += os.read(self.descriptor, 65536).decode(errors="replace")
        except OSError:  # closed by the last process
            return False
        return True

    def wait_for(self, pattern: str, seconds: float = 300) -> float:
        """Reads until the pattern was written after the present end; returns how long that took."""
        started, start = time.monotonic(), len(self.written)
        while not re.search(pattern, self.written[start:]):
            assert self.read(), self.written[-3000:]
            assert time.monotonic() < started + seconds, self.written[-3000:]
        return time.monotonic() - started

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def finish(self, seconds: float = 300) -> int:
        deadline = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < deadline, self.written[-3000:]
        return self.process.wait(seconds)

    def screen(self) -> list[str]:
        """Returns the lines as they stand on a screen of unlimited height."""
        return [shown(line) for line in self.written.replace("\r\n", "\n").split("\n")]


def shown(line: str) -> str:
    """Returns what is left of a line after carriage returns: each part covers the beginning of what stood there."""
    cells = ""
    for part in line.split("\r"):
        first, *erased = part.split(ERASED)
        cells = first + cells[len(first) :]
        for rest in erased:
            cells = first = first + rest
    return cells.rstrip()


@contextmanager
def terminal(command: Sequence[str], folder: Path, columns: int = 80) -> Iterator[Terminal]:
    """Yields the terminal of a command, of which nothing is left running."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *command],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                one.kill()
            process.wait()
        os.close(ours)


def wait_until_gone(pid: int, seconds: float = 10) -> bool:
    return wait_until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, seconds
    )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
