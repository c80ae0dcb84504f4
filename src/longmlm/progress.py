"""Progress: a bar on a terminal; elsewhere, as in a log file, dated lines without control characters.

2026-11-22 10:15:02 step 120/3000 loss 2.310 accuracy 55.1 % lr 4.8e-05 12,345 tokens/s 0:42:10 left
2026-11-22 10:15:02 prepare 45 % 0:42:10 left
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import ClassVar, TypeVar

from longmlm.escaping import single_line
from longmlm.processes import overlapping

Item = TypeVar("Item")

TIME = "%Y-%m-%d %H:%M:%S"
SHARE_BETWEEN_LINES = 0.05
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_TICKS = 1.0
WITH_TEXT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
BARS_OF_LIBRARIES = ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


def is_terminal() -> bool:
    """Returns whether progress is shown on a terminal."""
    return sys.stderr.isatty()


def hide_bars_off_terminal() -> None:
    """Disables the progress bars of libraries unless there is a terminal; must run before they are imported."""
    for name in () if is_terminal() else BARS_OF_LIBRARIES:
        os.environ.setdefault(name, "1")


def message(text: str) -> None:
    """Prints a line to standard output, above a bar if there is one."""
    from tqdm import tqdm

    tqdm.write(single_line(text))


def dated_line(text: str) -> None:
    """Prints a line with the local time to standard error, above a bar if there is one."""
    from tqdm import tqdm

    tqdm.write(f"{time.strftime(TIME)} {single_line(text)}", file=sys.stderr)
    sys.stderr.flush()


class Progress(AbstractContextManager["Progress"]):
    """Progress of `name` from `initial` to `total` units; prints nothing unless `is_shown`.

    A terminal shows one bar at a time: the bar of an evaluation hides that of the training around it.
    """

    bars: ClassVar[list["Progress"]] = []  # bars on the terminal, the visible one last

    def __init__(self, name: str, total: int, unit: str, initial: int = 0, is_shown: bool = True) -> None:
        from tqdm import tqdm  # reads its environment when it is imported

        self.name, self.total, self.initial, self.done = name, total, initial, initial
        self.has_lines = is_shown and not is_terminal()
        self.started = self.line_at = time.monotonic()
        self.share_of_line = initial / max(1, total)
        disable = self.has_lines or not is_shown
        if self.bars and not disable:
            self.bars[-1].bar.clear()
            self.bars[-1].bar.disable = True
        self.bar = tqdm(
            desc=name,
            total=total,
            initial=initial,
            unit=unit,
            unit_scale=unit == "B",
            leave=not self.bars,
            position=0,
            miniters=1,
            dynamic_ncols=True,
            disable=disable,
        )
        self.is_over, self.clock = threading.Event(), threading.Thread(target=self._tick, daemon=True)
        if not disable:
            self.bars.append(self)
            self.clock.start()

    def _tick(self) -> None:
        """Shows the time that passes while a unit takes long."""
        while not self.is_over.wait(SECONDS_BETWEEN_TICKS):
            self.bar.refresh()

    def __exit__(self, *_error: object) -> None:
        self.is_over.set()
        if self.clock.is_alive():
            self.clock.join()
        self.bar.close()
        if self in self.bars:
            self.bars.remove(self)
            for outer in self.bars[-1:]:
                outer.bar.disable = False
                outer.bar.refresh()

    def advance(self, amount: int = 1) -> None:
        """Counts `amount` units as done; off a terminal, prints a line every 5 %, at most one in 10 seconds."""
        self.done += amount
        self.bar.update(amount)
        share, now = self.done / max(1, self.total), time.monotonic()
        is_due = share - self.share_of_line >= SHARE_BETWEEN_LINES and now - self.line_at >= SECONDS_BETWEEN_LINES
        if self.has_lines and is_due:
            self.share_of_line, self.line_at = share, now
            dated_line(f"{self.name} {share:.0%} {self._left()}".replace("%", " %"))

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items; each counts as one unit done when the next is requested."""
        for item in items:
            yield item
            self.advance()

    def move_to(self, done: int, text: str = "") -> None:
        """Sets the number of units done and, unless empty, the text after the bar; prints nothing off a terminal."""
        if text:
            self.bar.bar_format = WITH_TEXT
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(done - self.done)
        self.done = done

    def report(self, done: int, text: str) -> None:
        """Sets the number of units done; off a terminal, prints a line with the text."""
        self.move_to(done)
        if self.has_lines:
            dated_line(f"{self.name} {done}/{self.total} {text} {self._left()}")

    def _left(self) -> str:
        seconds = (time.monotonic() - self.started) / max(1, self.done - self.initial) * (self.total - self.done)
        return f"{timedelta(seconds=round(seconds))} left"


@overlapping
@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppresses the progress bars of transformers and the warnings of all libraries, such as DeepSpeed's."""
    import transformers.utils.logging as transformers_logging

    level, has_bars = logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(level)
        if has_bars:
            transformers_logging.enable_progress_bar()
