"""Child processes that receive the stop signals of their parent and are waited for with all their descendants."""

import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path

import psutil

from longmlm.processes import PARENT_VARIABLE, adopt_orphans, end_with_parent
from longmlm.runtime.signals import ADDRESS, Stop, report, stop_on_signal

POLL_SECONDS = 0.05
CREDENTIALS = "3i"  # of SO_PEERCRED: the process, its user and its group
SECONDS_TO_END = 1.0  # most killed processes need milliseconds


class Registry:
    """The processes that have registered with this one; they need `name` in PARENT_VARIABLE of their environment."""

    def __init__(self) -> None:
        self.name = os.urandom(16).hex()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(ADDRESS.format(self.name))
        self._listener.listen()
        self._listener.setblocking(False)
        self._open: list[socket.socket] = []

    def running(self) -> set[int]:
        """Returns the ids of the processes that have registered and still run."""
        with suppress(BlockingIOError):
            while True:
                self._open.append(self._listener.accept()[0])
        for ended in select.select(self._open, [], [], 0)[0]:  # a child sends nothing: only its end can be read
            self._open.remove(ended)
            ended.close()
        size = struct.calcsize(CREDENTIALS)
        credentials = [child.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size) for child in self._open]
        return {struct.unpack(CREDENTIALS, found)[0] for found in credentials} - {0}  # 0: in another container

    def close(self) -> None:
        """Closes the socket, and the connections of processes that still run."""
        for connection in (self._listener, *self._open):
            connection.close()


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None = None,
    answer: str = "",
) -> tuple[int, str]:
    """Runs a command to its end; returns its exit code, and the name of the signal that stopped it, empty if none did.

    The first stop signal is passed on as SIGTERM. `answer` is printed if the command's output goes to the file `log`.
    A second SIGINT kills the command and all processes that it started.
    """
    adopt_orphans()
    with (
        closing(Registry()) as registered,
        stop_on_signal(answer, kill_descendants) as stop,
        log.open("ab") if log else nullcontext() as output,
        subprocess.Popen(
            command,
            env={**environment, PARENT_VARIABLE: registered.name},
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C reaches this process only, which passes it on once
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        ) as child,
    ):
        code = _wait(child, stop, registered)
    return code, stop.signal_name


def _wait(child: subprocess.Popen, stop: Stop, registered: Registry) -> int:
    """Returns the exit code, when the child and all that have registered have ended; passes a stop signal on.

    It goes to processes that have registered or register later. A launcher gets it only if there are none, as it would
    print a traceback over their progress bar; if it ends before the processes it started, they get the signal too.
    """
    signalled: set[int] = set()
    while True:
        code, running = child.poll(), registered.running()
        if code is not None and not running and not (signalled and _has_orphans(child.pid)):
            return code
        if stop or code is not None:
            for number in (running if running or signalled else {child.pid}) - signalled:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGTERM)
                signalled.add(number)
        time.sleep(POLL_SECONDS)


def _has_orphans(group: int) -> bool:
    """Returns whether processes of a group still run after the one that started them has ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
        return True
    return False


def kill_descendants() -> None:
    """Kills all processes that this one has started, and those that they have started; reports it over their bars."""
    descendants = psutil.Process().children(recursive=True)
    for descendant in descendants:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    deadline = time.monotonic() + SECONDS_TO_END
    while any(map(_is_alive, descendants)) and time.monotonic() < deadline:  # until then one may draw its bar
        time.sleep(SECONDS_TO_END / 100)
    report("ended without saving")


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
