"""Processes: exit with the parent or on SIGTERM, leave signals and GPUs alone, lock a folder."""

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
    """Makes Linux send this process the signal `number` when its parent exits, for whatever reason."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def ignore_stop_signals(_worker: int = 0) -> None:
    """Ignores SIGTERM and SIGINT, which reach a whole process group, where the main process handles them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def hide_gpus() -> None:
    """Makes this process compute on the CPU unless CUDA_VISIBLE_DEVICES is set; call it before torch is imported."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM leave the block like an error, so that partial output is removed, with exit code 143."""

    def leave(number: int, _frame: object) -> None:
        print(f"stopped by {signal.Signals(number).name}: the same command resumes", file=sys.stderr, flush=True)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of `folder`; raises FolderError when another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(f"{folder} is being written by another process: wait for it, or stop it") from None
        yield
