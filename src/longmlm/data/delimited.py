"""Records of .csv files, and where reading resumes after a broken one.

    id,text
    1,"open
    2,plain
    3,"He said "no", and
    left, smiling."
    4,"good"

The quote that opens in record 1 is never closed, and the quotes inside record 3 are not doubled. A reader that
continues after an error takes 'left, smiling."' for a record; one that waits for a closing quote loses record 2. This
one resumes at the next line that begins a record: a line with as many fields as the header (or more, if it is broken
itself), unless the next quote that can only open or only close a field closes one, as in 'left, smiling."'.

Where quotes are text, every line is a record.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from longmlm.data.files import Lines
from longmlm.data.texts import BYTE_ORDER_MARK, Unreadable
from longmlm.processes import overlapping
from longmlm.settings.prepare import Quoting

# Without limits, a quote that is never closed would hold the rest of a file in memory, at up to 8 bytes a character.
FIELD_CHARACTERS = 1 << 27
LOOK_AHEAD_BYTES = 1 << 27
BROKEN = "broken CSV"
TOO_LONG = f"broken CSV, or a field of more than {FIELD_CHARACTERS:,} characters"
BACKSLASHES = "broken CSV: a quote inside a field is escaped with a backslash, not doubled"
PROBLEMS = (BROKEN, TOO_LONG, BACKSLASHES)
ODD_QUOTES = re.compile(r'(?<!")"(?:"")*(?!")')  # an even number of them is an empty field, or quotes in a field

QUOTED = r'"(?:[^"]++|"")*+"'  # a field
QUOTING = {"double": csv.QUOTE_MINIMAL, "none": csv.QUOTE_NONE}

Cells = list[str] | Unreadable  # of a record, or why it is broken


@overlapping
@contextmanager
def long_fields() -> Iterator[None]:
    """Sets the longest field that the module csv accepts, in the whole process."""
    before = csv.field_size_limit(FIELD_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class DelimitedReader:
    """Reads records from lines one after the other."""

    def __init__(self, lines: Lines, delimiter: str, num_fields: int = 0, quoting: Quoting = "double") -> None:
        """Starts at a line that begins a record; without `num_fields` it is the header."""
        self._quoting = QUOTING[quoting]
        self._lines, self._delimiter, self._num_fields = lines, delimiter, num_fields
        self._taken: list[bytes] = []  # lines of the current record

    def records(self, end: int) -> Iterator[tuple[int, Cells]]:
        """Yields the offset and the fields of each record that begins before `end`, or why it is broken.

        Blank lines are not records.
        """
        while self._lines.offset < end:
            begin, cells = self._lines.offset, self._next_record()
            if not self._taken:
                return
            if isinstance(cells, Unreadable):
                if self._quoting != csv.QUOTE_NONE and any(b'"' in line for line in self._taken):
                    self._skip_broken()
                yield begin, cells
            elif cells:
                self._num_fields = self._num_fields or len(cells)
                yield begin, cells

    def _next_record(self) -> Cells:
        self._taken.clear()
        try:
            options: dict[str, Any] = {"delimiter": self._delimiter, "quoting": self._quoting, "strict": True}
            with long_fields():
                return next(csv.reader(iter(self._next_line, ""), **options), [])
        except csv.Error as error:
            if "field limit" in str(error):
                return Unreadable(TOO_LONG)
            return Unreadable(BACKSLASHES if any(b'\\"' in line for line in self._taken) else BROKEN)

    def _next_line(self) -> str:
        line = self._lines.read()
        if line:
            self._taken.append(line)
        return _decoded(line.removeprefix(BYTE_ORDER_MARK) if self._lines.offset == len(line) else line)

    def _skip_broken(self) -> None:
        """Moves from the end of a broken record to the next line that begins a record, or to the end of the file."""
        self._lines.push_back(self._taken[1:])
        decided_until, opens = -1, True
        while True:
            cells = self._next_record()
            if not self._taken:
                return
            self._lines.push_back(self._taken)
            if isinstance(cells, Unreadable):
                begins = _decoded(self._taken[0]).count(self._delimiter) + 1 >= self._num_fields
            else:
                begins = len(cells) == self._num_fields
            if begins and self._lines.offset >= decided_until:
                decided_until, opens = self._next_quote()
            if begins and opens:
                return
            self._lines.read()

    def _next_quote(self) -> tuple[int, bool]:
        """Returns the end of the line whose quote decides whether a field is open here, and whether no field is open.

        That is the first quote that can only open or only close a field; without one, none is open.
        """
        ahead, opens, until = [], None, self._lines.offset + LOOK_AHEAD_BYTES
        while opens is None and self._lines.offset < until and (line := self._lines.read()):
            ahead.append(line)
            opens = _opens_field(_decoded(line), self._delimiter)
        decided_until = self._lines.offset
        self._lines.push_back(ahead)
        return decided_until, opens is not False


def _opens_field(line: str, delimiter: str) -> bool | None:
    """Returns whether the first quote that can only open or only close a field opens one; None without such a quote."""
    for quotes in ODD_QUOTES.finditer(line):
        may_open = line[max(0, quotes.start() - 1) : quotes.start()] in ("", delimiter)
        may_close = line[quotes.end() : quotes.end() + 1] in ("", "\r", "\n", delimiter)
        if may_open != may_close:
            return may_open
    return None


def quoting_of(head: str, delimiter: str, is_cut: bool = False) -> Quoting:
    """Returns whether the lines at the beginning of a file have fields in quotes, or quotes that are text.

    With tabs, and the header "id text", these records can be read in one way only:

        1   "He said ""no""."      in quotes: two quotes inside are one
        2   "The first line,       in quotes: without them, "the second" would be a record of one field
        the second"
        3   "No," he said.         as text
        4   "Not closed here,      as text: each line is a record of two fields
        5   but here."

    The more frequent way decides, unless names in the header are in quotes. Without any such record, quotes are text.
    If the file goes on after them (`is_cut`), the last record may end within quotes.
    """
    mark = re.escape(delimiter)
    cell = rf'(?:{QUOTED}|[^"\r\n{mark}]*+)'
    record = re.compile(rf"{cell}(?:{mark}{cell})*+(?:\r?\n|\Z)")
    unfinished = re.compile(rf'(?:{cell}{mark})*+"(?:[^"]++|"")*+\Z')
    votes = num_fields = offset = 0
    while offset < len(head):
        found = record.match(head, offset)
        end = found.end() if found else head.find("\n", offset) + 1 or len(head)
        begin, text, offset = offset, head[offset:end], end
        if not num_fields:
            if found and '"' in text:
                return "double"
            num_fields = text.count(delimiter) + 1
        elif is_cut and not found and unfinished.match(head, begin):
            votes, offset = votes + (_vote(head[begin:], False, delimiter, num_fields) or 1), len(head)
        elif '"' in text:
            votes += _vote(text, found is not None, delimiter, num_fields)
    return "double" if votes > 0 else "none"


def _vote(text: str, may_have_quoted_fields: bool, delimiter: str, num_fields: int) -> int:
    """Returns 1 for a record that can only be read with fields in quotes, -1 with quotes as text, 0 for both."""
    lines = [line for line in text.split("\n") if line.strip("\r")]
    fits_as_text = all(line.count(delimiter) + 1 == num_fields for line in lines)
    if may_have_quoted_fields and re.sub(QUOTED, "", text).count(delimiter) + 1 == num_fields:
        is_doubled = any('""' in field[1:-1] for field in re.findall(QUOTED, text))
        if is_doubled or not fits_as_text or len(lines) > num_fields == 1:
            return 1
        return -int(len(lines) > 1)
    return -int(fits_as_text)


def _decoded(line: bytes) -> str:
    return line.decode(errors="surrogateescape")
