"""Watchdog: terminates a process that waits too long for another rank or for a device."""

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from longmlm.errors import RESUMES_FROM_CHECKPOINT

_latest_heartbeat = [0.0]


def heartbeat() -> None:
    """Records that this process is making progress."""
    _latest_heartbeat[0] = time.monotonic()


@contextmanager
def pause_watchdog() -> Iterator[None]:
    """Exempts a block that may take long, such as writing to a slow disk."""
    _latest_heartbeat[0] = math.inf
    try:
        yield
    finally:
        heartbeat()


@contextmanager
def watchdog(seconds: float, process_index: int) -> Iterator[None]:
    """Exits this process with code 1 and one line when `seconds` pass without a heartbeat while the block runs.

    Every rank waits for the others in each step, so all ranks that wait for a hanging one exit; the launcher terminates
    that one.
    """
    is_over, tick = threading.Event(), min(1.0, seconds / 4)
    heartbeat()

    def watch() -> None:
        last, ticks = 0.0, 0  # ticks, not the clock: a process that was suspended for a while does not hang
        while not is_over.wait(tick):
            ticks = ticks + 1 if last == _latest_heartbeat[0] != math.inf else 0
            last = _latest_heartbeat[0]
            if ticks * tick > seconds:
                waited = f"process {process_index} waited {seconds:.0f} s for another process or a device, which hangs"
                print(f"\nerror: {waited}; {RESUMES_FROM_CHECKPOINT}", file=sys.stderr, flush=True)
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
