"""Stop signals: SIGTERM and SIGINT as a flag that training reads."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    """Whether a stop signal has arrived, and which."""

    signal_name: str = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Yields a flag that SIGTERM and SIGINT set instead of terminating the process; a second SIGINT interrupts."""
    stop = Stop()

    def set_flag(number: int, _frame: object) -> None:
        if stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal_name = signal.Signals(number).name

    before = {number: signal.signal(number, set_flag) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
