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
        self._stream, self._held, self._at = stream, b"", 0  # the bytes that are held, and where the element begins
        self._held_from = stream.seek(begin) if begin else 0

    def elements(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields offset and bytes of each element that begins before `end`; only the first byte if it does not end."""
        while self._find_next() and (begin := self._held_from + self._at) < end:
            length = self._length()
            element = self._held[self._at : self._at + (length or 1)]
            self._at += length
            if not length:
                self._skip_broken()
            yield begin, element

    def _read(self) -> bool:
        """Reads about as much again as is held of the element, so that a long one is searched only a few times."""
        part = self._stream.read(max(CHUNK_BYTES, len(self._held) - self._at))
        self._held_from += self._at
        self._held, self._at = self._held[self._at :] + part, 0
        return bool(part)

    def _find_next(self) -> bool:
        """Moves to the next element; returns whether there is one."""
        while True:
            self._at = next(BETWEEN.finditer(self._held, self._at)).end()
            if self._at < len(self._held):
                return True
            if not self._read():
                return False

    def _length(self) -> int:
        """Returns the length of the element; 0 if it does not end, or its brackets are not paired."""
        searched, closing = 0, bytearray()  # the brackets that are to come, the next one last
        while True:
            for found in PART.finditer(self._held, self._at + searched):
                sign = self._held[found.start()]
                if sign in CLOSING:
                    closing.append(CLOSING[sign])
                elif sign in CLOSING.values():
                    if not closing or closing.pop() != sign:
                        return 0
                elif not found[1] if sign == QUOTE else found.end() == len(self._held):
                    break  # a string or a literal that may go on
                searched = found.end() - self._at
                if not closing:
                    return searched
            if len(self._held) - self._at > ELEMENT_BYTES or not self._read():
                return 0

    def _skip_broken(self) -> None:
        """Moves to what looks like the beginning of the next object, or to the end of the file."""
        while not (found := RESUME.search(self._held, self._at)):
            self._at = max(self._at, len(self._held) - RESUME_BYTES)
            if not self._read():
                self._at = len(self._held)
                return
        self._at = found.end()
