"""Watchdog: ends a process that waits too long for another one."""

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_latest_heartbeat = [0.0]


def heartbeat() -> None:
    """Says that this process is at work."""
    _latest_heartbeat[0] = time.monotonic()


@contextmanager
def pause_watchdog() -> Iterator[None]:
    """Lets what takes its time, such as writing to a slow disk, not count as hanging."""
    _latest_heartbeat[0] = math.inf
    try:
        yield
    finally:
        heartbeat()


@contextmanager
def watchdog(seconds: float, process_index: int) -> Iterator[None]:
    """Ends this process with exit code 1 and one line when there was no beat for `seconds` while the block runs.

    A process waits for its fellows in each step, so all end that wait for one that hangs; the launcher ends that one.
    """
    over, tick = threading.Event(), min(1.0, seconds / 4)
    heartbeat()

    def watch() -> None:
        seen, ticks = 0.0, 0  # ticks, not the clock: a process that was stopped for a while does not hang
        while not over.wait(tick):
            ticks = ticks + 1 if seen == _latest_heartbeat[0] != math.inf else 0
            seen = _latest_heartbeat[0]
            if ticks * tick > seconds:
                said = (
                    f"error: process {process_index} waited {seconds:.0f} s for its fellows or for a device: one hangs"
                )
                print(f"\n{said}; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
