"""Texts of documents: a short one is a string, a long one stays encoded and is decoded piece by piece."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

LONG_BYTES = 4_000_000
PIECE_BYTES = 1 << 20
CACHED_PIECES = 4
BAD_ENCODING = "bad UTF-8"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UNBROKEN = re.compile(rb"(?![\x80-\xbf])")  # after the last byte of a character


class LongText:
    """A text of many megabytes with the length and the slices of a string; only a few pieces are decoded at a time."""

    def __init__(self, encoded: Sequence[memoryview], decode: Callable[[memoryview], str]) -> None:
        """Decodes every piece once, so that bytes that are not text raise ValueError at once."""
        self._starts = [0, *accumulate(len(decode(piece)) for piece in encoded)]

        @lru_cache(CACHED_PIECES)
        def piece(number: int) -> str:
            return decode(encoded[number])

        self._piece = piece

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, span: slice) -> str:
        begin, end, _ = span.indices(len(self))
        first, last = bisect_right(self._starts, begin) - 1, bisect_left(self._starts, end)
        shift = self._starts[first]
        return "".join([self._piece(number) for number in range(first, last)])[begin - shift : max(begin, end) - shift]

    def pieces(self) -> Iterator[str]:
        """Yields the text in consecutive strings."""
        return map(self._piece, range(len(self._starts) - 1))


Text = str | LongText


def pieces_of(text: Text) -> Iterator[str]:
    """Yields the text in consecutive strings."""
    return iter([text]) if isinstance(text, str) else text.pieces()


def text_of(raw: bytes) -> Text:
    """Returns the text that the bytes encode; raises UnicodeDecodeError if they are not UTF-8."""
    if len(raw) <= LONG_BYTES:
        return raw.decode()
    return LongText(list(encoded_pieces(raw, 0, len(raw), UNBROKEN)), lambda piece: str(piece, "utf-8"))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record without a text, and the reason."""

    reason: str


Record = tuple[int, Text | Unreadable]  # of a file: its offset or number, and its text


def text_or_reason(raw: bytes) -> Text | Unreadable:
    """Returns the text that the bytes encode, or that they are not UTF-8."""
    try:
        return text_of(raw)
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)


def encoded_pieces(raw: bytes, begin: int, end: int, border: re.Pattern[bytes]) -> Iterator[memoryview]:
    """Yields raw[begin:end] in pieces of about PIECE_BYTES, each of which ends where `border` matches."""
    view = memoryview(raw)
    while begin < end:
        match = border.search(raw, begin + PIECE_BYTES, end)
        cut = match.end() if match else end
        yield view[begin:cut]
        begin = cut
