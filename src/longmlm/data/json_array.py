r"""Elements of .json files, arrays of objects or objects one after the other, without holding a whole file in memory.

    [{"id": 1, "text": "The lake [was"}, {"id": 2, "text": "5" wide"}, {"id": 3, "text": "calm]."}]

An element ends where all of its brackets are closed; brackets in strings do not count. The second element has a quote
too many, so that it seems to go on to the end of the file: it is broken, and reading resumes at the next object.
"""

import io
import re
from collections.abc import Iterator

from longmlm.data.files import CHUNK_BYTES
from longmlm.data.json_lines import STRING

ELEMENT_BYTES = 1 << 27  # an element that is not closed within these is broken
BETWEEN = re.compile(rb"(?:\xef\xbb\xbf|[\s,\[\]])*")  # elements; a list of lists has all their elements
PART = re.compile(STRING + rb"|[\[\]{}]|[^\s,\[\]{}\"]+", re.DOTALL)
RESUME, RESUME_BYTES = re.compile(rb"(?:\}\s*,|\n)\s*(?=\{)"), 1_000
QUOTE, CLOSING = ord('"'), {ord("["): ord("]"), ord("{"): ord("}")}


class ElementReader:
    """Reads elements from a stream of bytes, one after the other."""

    def __init__(self, stream: io.BufferedIOBase, begin: int) -> None:
        """Starts at the offset `begin`, where the file or an element begins."""
        self._stream, self._buffer, self._start = stream, b"", 0  # where the element starts in the buffer
        self._buffer_start = stream.seek(begin) if begin else 0

    def elements(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields offset and bytes of each element that begins before `end`; only the first byte if it does not end."""
        while self._find_next() and (begin := self._buffer_start + self._start) < end:
            length = self._length()
            element = self._buffer[self._start : self._start + (length or 1)]
            self._start += length
            if not length:
                self._skip_broken()
            yield begin, element

    def _read(self) -> bool:
        """Reads about as much again as the buffer holds, so that a long element is searched only a few times."""
        part = self._stream.read(max(CHUNK_BYTES, len(self._buffer) - self._start))
        self._buffer_start += self._start
        self._buffer, self._start = self._buffer[self._start :] + part, 0
        return bool(part)

    def _find_next(self) -> bool:
        """Moves to the next element; returns whether there is one."""
        while True:
            self._start = next(BETWEEN.finditer(self._buffer, self._start)).end()
            if self._start < len(self._buffer):
                return True
            if not self._read():
                return False

    def _length(self) -> int:
        """Returns the length of the element; 0 if it does not end, or its brackets are not paired."""
        searched, closing = 0, bytearray()  # the brackets that are to come, the next one last
        while True:
            for found in PART.finditer(self._buffer, self._start + searched):
                byte = self._buffer[found.start()]
                if byte in CLOSING:
                    closing.append(CLOSING[byte])
                elif byte in CLOSING.values():
                    if not closing or closing.pop() != byte:
                        return 0
                elif not found[1] if byte == QUOTE else found.end() == len(self._buffer):
                    break  # a string or a literal that may go on
                searched = found.end() - self._start
                if not closing:
                    return searched
            if len(self._buffer) - self._start > ELEMENT_BYTES or not self._read():
                return 0

    def _skip_broken(self) -> None:
        """Moves to what looks like the beginning of the next object, or to the end of the file."""
        while not (found := RESUME.search(self._buffer, self._start)):
            self._start = max(self._start, len(self._buffer) - RESUME_BYTES)
            if not self._read():
                self._start = len(self._buffer)
                return
        self._start = found.end()
