"""Stop signals: before a stage starts they end the process, in a stage they raise, in training they set a flag."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from longmlm.errors import RESUMES_FROM_CHECKPOINT
from longmlm.processes import has_parent, prints_errors

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
SECONDS_UNTIL_RETRY = 0.05
SECOND = "press Ctrl-C again to end without saving"
STDERR = 2


class StopSignalError(SystemExit):
    """Raised in a stage by a stop signal; the exit code is 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def exit_at_once() -> None:
    """Makes a stop signal end this process from now on, which is right as long as nothing is written.

    An exception would not do: a library that is being imported may catch it, or abort while Python shuts down.
    """
    for number in STOP_SIGNALS:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    _report_stop(number, "it had not started; run the same command again")
    os._exit(128 + number)


def _caught_signals() -> list[signal.Signals]:
    """Returns the stop signals that a program which calls longmlm does not handle itself, in its main thread.

    SIGINT is left out where it is ignored, as a shell does for a job in the background.
    """
    if threading.current_thread() is not threading.main_thread():  # no other can set a handler
        return []
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    default = (signal.SIG_DFL, signal.default_int_handler)
    return [
        number
        for number, handler in handlers.items()
        if handler in default or getattr(handler, "__module__", "") == __name__
    ]


def stopped_by(name: str) -> str:
    """Returns "stopped by SIGINT"; without the name in a child, whose parent may have received another signal."""
    return "stopped" if has_parent() else f"stopped by {name}"


def _report_stop(number: int, what_follows: str) -> None:
    stopped = stopped_by(signal.Signals(number).name)
    report(stopped if has_parent() else f"{stopped}: {what_follows}")  # a parent says what follows for its own command


def report(text: str) -> None:
    """Writes a line of printable text to standard error, in place of a progress bar, in the first process of a machine.

    It bypasses Python's buffers, which a signal may have interrupted.
    """
    if prints_errors():
        before = "\r\x1b[K" if os.isatty(STDERR) else ""
        with suppress(OSError):
            os.write(STDERR, f"{before}{text}\n".encode())


@contextmanager
def exit_on_signal(what_follows: str) -> Iterator[None]:
    """Makes a stop signal raise StopSignalError in the block, so that partial output is removed.

    One line says so, and `what_follows` when the command is started again. A second SIGINT exits at once. Where the
    exception would be lost, as in an import or a destructor, it is raised a little later.
    """
    received: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            if received and number == signal.SIGINT:
                os._exit(128 + number)
            if received:
                return
            received.append(number)
            _report_stop(number, what_follows)
        if _is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_RETRY)
        else:
            raise StopSignalError(received[0])

    def retry(lost: "sys.UnraisableHookArgs") -> None:
        if isinstance(lost.exc_value, StopSignalError):
            signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_RETRY)
        else:
            hook(lost)

    hook, sys.unraisablehook = sys.unraisablehook, retry
    before = {number: signal.signal(number, leave) for number in (*_caught_signals(), signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


@contextmanager
def killed_by_signals() -> Iterator[None]:
    """Makes a stop signal kill this process in a block that waits inside a library, where no handler would run."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _caught_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame and frame.f_code.co_filename != IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None


@dataclass(slots=True)
class Stop:
    """Which stop signal has arrived, if any, and the line that answers it at once, if there is one."""

    signal_name: str = ""
    answer: str = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)


def exit_without_saving() -> None:
    """Ends this process, and with it a checkpoint that is being written; the one before it is kept."""
    report(f"ended without saving: {RESUMES_FROM_CHECKPOINT}")
    os._exit(128 + signal.SIGINT)


@contextmanager
def stop_on_signal(answer: str = "", at_second: Callable[[], None] = exit_without_saving) -> Iterator[Stop]:
    """Yields a flag that a stop signal sets instead of ending the process; a second SIGINT calls `at_second`."""
    from longmlm.progress import TIME  # not before exit_at_once, which a signal of the first moments needs

    stop = Stop(answer=answer)

    def set_flag(number: int, _frame: object) -> None:
        if stop and number == signal.SIGINT:
            at_second()
        elif not stop:
            stop.signal_name = signal.Signals(number).name
            if stop.answer:
                report(f"{stop.answer}; {SECOND}" if os.isatty(STDERR) else f"{time.strftime(TIME)} {stop.answer}")

    before = {number: signal.signal(number, set_flag) for number in _caught_signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
