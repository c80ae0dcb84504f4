"""Lines of plain and compressed files, read from any offset on.

A compressed file can only be read from its start, or from that of a frame: to read it slice by slice would take time
that is quadratic in its size. So the reader of the last slice stays open, and continues where it stopped when the same
process reads a later slice of the same file.
"""

import io
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longmlm.data.files import COMPRESSED, Span, open_bytes, skip


class Lines:
    """The lines of a stream, which can be put back; `offset` is where the next one begins."""

    def __init__(self, stream: io.BufferedIOBase, offset: int = 0) -> None:
        self._stream, self.offset = stream, offset
        self._waiting: deque[bytes] = deque()

    def read(self) -> bytes:
        """Returns the next line with its end; nothing at the end of the file."""
        line = self._waiting.popleft() if self._waiting else self._stream.readline()
        self.offset += len(line)
        return line

    def put_back(self, lines: Sequence[bytes]) -> None:
        """Makes the lines that were read last, in their order, the next ones again."""
        self._waiting.extendleft(reversed(lines))
        self.offset -= sum(map(len, lines))

    def skip_to(self, start: int) -> None:
        """Moves on to the first line that begins at or after `start`."""
        while self._waiting and self.offset < start:
            self.read()
        if self.offset < start:
            self.offset += skip(self._stream, start - 1 - self.offset)  # the byte before tells if a line begins there
            self.read()

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()


@dataclass(frozen=True, slots=True)
class _Paused:
    """A reader that stopped at `end`, and the file that it read: its path, inode, size and time of change."""

    file: tuple[str, int, int, int]
    end: int
    lines: Lines


_paused: list[_Paused] = []  # at most one


@contextmanager
def lines_of(span: Span) -> Iterator[Lines]:
    """Opens the lines of a file from the first one on that begins at or after `span.start`."""
    path = Path(span.path)
    file = _identity(path)
    lines = _resumed(file, span) or _opened(path, span)
    try:
        lines.skip_to(span.start)
        yield lines
    except BaseException:
        lines.close()
        raise
    if path.suffix in COMPRESSED:
        _paused.append(_Paused(file, span.end, lines))
    else:
        lines.close()


def _opened(path: Path, span: Span) -> Lines:
    if path.suffix in COMPRESSED:
        return Lines(open_bytes(path, span.frame.offset, span.frame), span.frame.offset)
    before = max(0, span.start - 1)
    return Lines(open_bytes(path, before), before)


def _resumed(file: tuple[str, int, int, int], span: Span) -> Lines | None:
    """Returns the paused reader if it stopped at or before `span`, and not before a frame that saves time."""
    while _paused:
        paused = _paused.pop()
        if paused.file == file and paused.end <= span.start and paused.lines.offset >= span.frame.offset:
            return paused.lines
        paused.lines.close()
    return None


def _identity(path: Path) -> tuple[str, int, int, int]:
    status = path.stat()
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns
