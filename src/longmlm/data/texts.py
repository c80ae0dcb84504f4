"""Encoded bytes to text: a short one is a string, a long one stays encoded and is decoded piece by piece."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import orjson

LONG_BYTES = 4_000_000
PIECE_BYTES = 1 << 20
CACHED_PIECES = 4
UNBROKEN = re.compile(rb"(?![\x80-\xbf])")  # after the last byte of a character
# An unclosed string is found too, without the quote: otherwise the search would begin anew at each escaped quote in it.
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
# The longest escape, a pair of surrogates, takes 12 bytes: where 12 have no backslash, none is open at their end. The
# other place is where an escape of no surrogate begins.
UNESCAPED = re.compile(rb"[^\\]{12}(?![\x80-\xbf])|(?<!\\)(?=\\u[0-9a-cA-CeEfF])")
LONG = "\x00long"


class LongText:
    """A text of many megabytes with a string's length and slices, of which a few pieces at a time are decoded."""

    def __init__(self, encoded: Sequence[memoryview], decode: Callable[[memoryview], str]) -> None:
        """Decodes every piece once, so that what is no text raises ValueError here."""
        self._starts = [0, *accumulate(len(decode(piece)) for piece in encoded)]
        self._piece: Callable[[int], str] = lru_cache(CACHED_PIECES)(partial(_decoded, encoded, decode))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, span: slice) -> str:
        begin, end, _ = span.indices(len(self))
        first, last = bisect_right(self._starts, begin) - 1, bisect_left(self._starts, end)
        shift = self._starts[first]
        return "".join([self._piece(number) for number in range(first, last)])[begin - shift : max(begin, end) - shift]

    def pieces(self) -> Iterator[str]:
        """Yields strings that joined are the text."""
        return map(self._piece, range(len(self._starts) - 1))


def _decoded(encoded: Sequence[memoryview], decode: Callable[[memoryview], str], number: int) -> str:
    return decode(encoded[number])


Text = str | LongText


def pieces_of(text: Text) -> Iterator[str]:
    """Yields strings that joined are the text."""
    return iter([text]) if isinstance(text, str) else text.pieces()


def text_of(raw: bytes) -> Text:
    """Returns the text that `raw` encodes; raises UnicodeDecodeError when it is no UTF-8."""
    if len(raw) <= LONG_BYTES:
        return raw.decode()
    return LongText(list(_pieces(raw, 0, len(raw), UNBROKEN)), lambda piece: str(piece, "utf-8"))


def json_of(line: bytes) -> Any:
    """Returns the value of a JSON line, in which a long string is a LongText; raises ValueError when it is broken.

    Members with a long name are not found.
    """
    if len(line) <= LONG_BYTES:
        return orjson.loads(line)
    text_of(line)
    strings = (found.span() for found in STRING.finditer(line) if found[1])
    spans = [(begin, end) for begin, end in strings if end - begin > PIECE_BYTES]
    ends = [0, *(end for _, end in spans)]
    begins = [*(begin for begin, _ in spans), len(line)]
    between = [line[end:begin] for end, begin in zip(ends, begins, strict=True)]
    places = [orjson.dumps({LONG: number}) for number in range(len(spans))]
    value = orjson.loads(b"".join(part for pair in zip(between, [*places, b""], strict=True) for part in pair))
    texts = [LongText(list(_pieces(line, begin + 1, end - 1, UNESCAPED)), _unescaped) for begin, end in spans]
    if not isinstance(value, dict):
        return value
    return {name: texts[item[LONG]] if _is_long(item) else item for name, item in value.items()}


def _is_long(item: Any) -> bool:
    return isinstance(item, dict) and LONG in item


def _unescaped(piece: memoryview) -> str:
    return orjson.loads(b'"%b"' % piece)


def _pieces(raw: bytes, begin: int, end: int, border: re.Pattern[bytes]) -> Iterator[memoryview]:
    """Yields raw[begin:end] in pieces of about PIECE_BYTES, which end where `border` does."""
    view = memoryview(raw)
    while begin < end:
        found = border.search(raw, begin + PIECE_BYTES, end)
        cut = found.end() if found else end
        yield view[begin:cut]
        begin = cut
