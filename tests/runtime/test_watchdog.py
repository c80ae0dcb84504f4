"""The watchdog exits a process that hangs, and no other."""

import threading
import time
from types import SimpleNamespace

import pytest

from longmlm.runtime import watchdog as module
from longmlm.runtime.watchdog import heartbeat, pause_watchdog, watchdog


@pytest.fixture
def exited(monkeypatch) -> threading.Event:
    """Set instead of exiting this process."""
    event = threading.Event()
    monkeypatch.setattr(module.os, "_exit", lambda code: event.set() if code == 1 else None)
    return event


def test_a_process_without_a_heartbeat_exits_and_one_with_heartbeats_or_paused_does_not(exited, capsys):
    with watchdog(0.4, 3):
        for _ in range(12):
            heartbeat()
            assert not exited.wait(0.1)
        with pause_watchdog():
            assert not exited.wait(1.2)
        assert exited.wait(10)
    assert "process 3" in capsys.readouterr().err


def test_a_process_that_was_suspended_for_a_while_does_not_hang(exited, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.time() * 1e6))
    with watchdog(60.0, 0):
        assert not exited.wait(1.5)
