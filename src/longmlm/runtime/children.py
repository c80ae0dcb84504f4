"""Child processes: they receive settings and stop signals, send errors, and are waited for with all descendants."""

import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from longmlm.errors import UserError
from longmlm.processes import ADDRESS, PARENT_VARIABLE, SETTINGS_FROM_PARENT, adopted_orphans, end_with_parent
from longmlm.runtime.signals import Stop, report, stop_on_signal

POLL_SECONDS = 0.05
CREDENTIALS = "3i"  # of SO_PEERCRED: the process, its user and its group
MAX_ERROR_BYTES = 1 << 20
SECONDS_TO_END = 1.0  # most killed processes need milliseconds


class Ended(NamedTuple):
    """How a child ended: its exit code, the name of the signal that stopped it, if any, and the error that it sent."""

    code: int
    signal_name: str = ""
    error: UserError | None = None


class Registry:
    """The processes that have registered with this one; they need `name` in PARENT_VARIABLE of their environment."""

    def __init__(self) -> None:
        self.name = os.urandom(16).hex()
        self.error: UserError | None = None  # the first that one of them has sent
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(ADDRESS.format(self.name))
        self._listener.listen()
        self._listener.setblocking(False)
        self._processes: dict[socket.socket, int] = {}

    def running(self) -> set[int]:
        """Returns the ids of the processes that have registered and still run."""
        with suppress(BlockingIOError):
            while True:
                self._add(self._listener.accept()[0])
        for connection in select.select(self._processes, [], [], 0)[0]:
            if sent := connection.recv(MAX_ERROR_BYTES):
                self.error = self.error or pickle.loads(sent)  # noqa: S301 - sent by a process of the same user
            else:
                del self._processes[connection]
                connection.close()
        return {*self._processes.values()} - {0}  # 0: in another container

    def _add(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(CREDENTIALS))
        process, user, _ = struct.unpack(CREDENTIALS, credentials)
        if user == os.getuid():
            self._processes[connection] = process
        else:
            connection.close()

    def close(self) -> None:
        """Closes the socket, and the connections of processes that still run."""
        for connection in (self._listener, *self._processes):
            connection.close()


def run_stage_process(stage: str, settings: object, environment: Mapping[str, str]) -> Ended:
    """Runs a stage with these settings in a Python of its own, to its end, as `run_child` does a command."""
    with os.fdopen(os.memfd_create("settings"), "w+b") as file:  # it is on no disk: the settings may hold a password
        pickle.dump(settings, file)
        file.seek(0)
        command = [sys.executable, "-P", "-m", "longmlm", stage, SETTINGS_FROM_PARENT]
        return run_child(command, environment, settings=file)


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    settings: IO[bytes] | None = None,
    log: Path | None = None,
    answer: str = "",
) -> Ended:
    """Runs a command to its end. Its standard input is the file `settings`, if one is given.

    The first stop signal is passed on as SIGTERM. `answer` is printed if the command's output goes to the file `log`.
    A second SIGINT kills the command and all processes that it started. If a signal handler of the
    calling program raises, the command is stopped too, and the exception is raised again once it has ended.
    """
    with (
        adopted_orphans(),
        closing(Registry()) as registered,
        stop_on_signal(answer, partial(kill_registered, registered.name)) as stop,
        log.open("ab") if log else nullcontext() as output,
        subprocess.Popen(
            command,
            env={**environment, PARENT_VARIABLE: registered.name},
            stdin=settings,
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C reaches this process only, which passes it on once
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        ) as child,
    ):
        code = _wait(child, stop, registered)
    return Ended(code, stop.signal_name, registered.error)


def _wait(child: subprocess.Popen, stop: Stop, registered: Registry) -> int:
    """Returns the exit code, when the child and all that have registered have ended; passes a stop signal on.

    It goes to processes that have registered or register later. A launcher gets it only if there are none, as it would
    print a traceback over their progress bar; if it ends before the processes it started, they get the signal too.
    """
    signalled: set[int] = set()
    raised: BaseException | None = None
    while True:
        try:
            code, running = child.poll(), registered.running()
            if code is not None and not running and not (signalled and _has_orphans(child.pid)):
                break
            if stop or raised or code is not None:
                for number in (running if running or signalled else {child.pid}) - signalled:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGTERM)
                    signalled.add(number)
            time.sleep(POLL_SECONDS)
        except BaseException as error:
            if raised:
                raise
            raised = error
    if raised:
        raise raised
    return code


def _has_orphans(group: int) -> bool:
    """Returns whether processes of a group still run after the one that started them has ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
        return True
    return False


def kill_registered(name: str) -> None:
    """Kills the children that could register under this name, and all that they have started; reports it over bars."""
    children = [child for child in psutil.Process().children() if _parent_of(child) == name]
    doomed = [*children, *(descendant for child in children for descendant in child.children(recursive=True))]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + SECONDS_TO_END
    while any(map(_is_alive, doomed)) and time.monotonic() < deadline:  # until then one may draw its bar
        time.sleep(SECONDS_TO_END / 100)
    report("ended without saving")


def _parent_of(process: psutil.Process) -> str | None:
    with suppress(psutil.Error):
        return process.environ().get(PARENT_VARIABLE)
    return None


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
