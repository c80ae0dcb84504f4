"""A worker of prepare that something has suspended: prepare ends with a line instead of waiting forever."""

import multiprocessing
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest

from longmlm.data import executor
from longmlm.data.executor import CHECK_SECONDS, SUSPENDED_SECONDS, check_running
from longmlm.errors import DataError


@pytest.fixture
def worker() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def send(worker: subprocess.Popen, number: signal.Signals) -> None:
    """Sends a signal that suspends a process or continues it, and waits until it has."""
    worker.send_signal(number)
    is_stop = number == signal.SIGSTOP
    while (psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED) != is_stop:
        time.sleep(0.01)


def test_a_worker_may_be_suspended_for_a_while_and_not_for_minutes(worker: subprocess.Popen) -> None:
    times_suspended = Counter[int]()
    allowed = round(SUSPENDED_SECONDS / CHECK_SECONDS)
    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
        send(worker, number)
        for _ in range(allowed):
            check_running([worker.pid], times_suspended)
    with pytest.raises(DataError, match=f"worker process {worker.pid} has been suspended for 120 s: .* are kept$"):
        check_running([worker.pid], times_suspended)


def test_a_worker_that_has_ended_is_left_to_the_pool(worker: subprocess.Popen) -> None:
    worker.kill()
    worker.wait()
    times_suspended = Counter({worker.pid: 1000})
    check_running([worker.pid], times_suspended)


def test_prepare_looks_at_its_workers_while_it_waits(worker: subprocess.Popen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(executor, "SUSPENDED_SECONDS", 0.03)
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [worker])
    done, waiting = Future[None](), Future[None]()
    done.set_result(None)
    send(worker, signal.SIGSTOP)
    assert list(executor.completed([done], set())) == [done]
    finished = executor.completed([done, waiting], set())
    assert next(finished) is done
    with pytest.raises(DataError, match=f"worker process {worker.pid} "):
        next(finished)
