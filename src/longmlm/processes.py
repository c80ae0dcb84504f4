"""A process to its fellows: it ends with its parent, and holds a folder alone."""

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longmlm.errors import FolderError

PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Asks Linux to send this process the signal `number` when its parent ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def ignore_stop_signals(_worker: int = 0) -> None:
    """Leaves SIGTERM and SIGINT, which reach a whole process group, to the process that knows how to stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def hide_gpus() -> None:
    """Lets this process compute on the CPU, unless CUDA_VISIBLE_DEVICES says otherwise; before torch is imported."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the block as an error would, so that what it has open is put away, with exit code 143."""

    def end(number: int, _frame: object) -> None:
        print(f"stopped by {signal.Signals(number).name}: the same command goes on", file=sys.stderr, flush=True)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Holds `folder` against every other process that asks so; raises FolderError when one holds it already."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(f"{folder} is being written by another process: wait for it, or end it") from None
        yield
