"""Child processes that receive the stop signals of their parent and are waited for with all their descendants."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from longmlm.processes import adopt_orphans, end_with_parent
from longmlm.runtime.signals import Stop, stop_on_signal


def run_child(
    command: Sequence[str], environment: Mapping[str, str], lines: Iterator[str] | None = None, log: Path | None = None
) -> tuple[int, str]:
    """Runs a command to its end; returns its exit code, and the name of the signal that stopped it, empty if none did.

    Prints `lines` as they become available. Output goes to the file `log`, if there is one.
    """
    adopt_orphans()
    with (
        stop_on_signal() as stop,
        log.open("ab") if log else nullcontext() as output,
        subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C reaches this process only, which passes it on once
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - it makes one system call
        ) as child,
    ):
        code = _wait(child, stop, lines or iter(()))
    return code, stop.signal_name


def _wait(child: subprocess.Popen, stop: Stop, lines: Iterator[str]) -> int:
    """Returns the exit code; passes a stop signal on to the child.

    After a signal it also waits for the child's children: a launcher may exit before training has saved.
    """
    is_passed_on = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(0.5)
            break
        if stop and not is_passed_on:
            child.terminate()
            is_passed_on = True
        if line := next(lines, ""):
            print(line, flush=True)
    with suppress(ChildProcessError):
        while is_passed_on:
            os.waitpid(-child.pid, 0)
    return code
