"""Child processes that receive the stop signals of their parent and are waited for with all their descendants."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import psutil

from longmlm.processes import adopt_orphans, end_with_parent
from longmlm.runtime.signals import CHILD_VARIABLE, Stop, report, stop_on_signal

POLL_SECONDS = 0.1
SECONDS_TO_END = 1.0  # most killed processes need milliseconds


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None = None,
    answer: str = "",
) -> tuple[int, str]:
    """Runs a command to its end; returns its exit code, and the name of the signal that stopped it, empty if none did.

    The first stop signal is passed on as SIGTERM, to the workers if the command is a launcher. `answer` is printed if
    the command's output goes to the file `log`. A second SIGINT kills the command and all processes that it started.
    """
    adopt_orphans()
    with (
        stop_on_signal(answer, kill_descendants) as stop,
        log.open("ab") if log else nullcontext() as output,
        subprocess.Popen(
            command,
            env={**environment, CHILD_VARIABLE: "1"},
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C reaches this process only, which passes it on once
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        ) as child,
    ):
        code = _wait(child, stop, command)
    return code, stop.signal_name


def _wait(child: subprocess.Popen, stop: Stop, command: Sequence[str]) -> int:
    """Returns the exit code; passes a stop signal on to the child.

    After a signal it also waits for the child's children: a launcher may exit before training has saved.
    """
    is_passed_on = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(POLL_SECONDS)
            break
        if stop and not is_passed_on:
            for process in _workers(child.pid, command):
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            is_passed_on = True
    with suppress(ChildProcessError):
        while is_passed_on:
            os.waitpid(-child.pid, 0)
    return code


def _workers(child: int, command: Sequence[str]) -> list[psutil.Process]:
    """Returns the worker processes of a launcher: those with the words of the command after -m; otherwise the child.

    A launcher that gets the signal itself, such as torchrun, prints a traceback over the progress bar of its workers.
    """
    words = [*command][max(at for at, word in enumerate(command) if word == "-m") :] if "-m" in command else []
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(child)
        for process in launcher.children(recursive=True):  # a parent comes before its children
            with suppress(psutil.Error):
                is_inside = any(parent in found for parent in process.parents())
                if words and not is_inside and process.cmdline()[-len(words) :] == words:
                    found.append(process)
        return found or [launcher]
    return found


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
