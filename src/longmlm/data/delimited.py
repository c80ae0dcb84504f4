"""Records of .csv and .tsv files, whose fields may be in quotes and then hold delimiters and ends of lines.

A record with more or fewer fields than the header is set aside. If fields are in quotes and a quote breaks the rules,
the end of its record is unknown, and the file is refused. If quotes are text, every line is a record.
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from longmlm.data.columns import by_name, check_column
from longmlm.data.files import CHUNK_BYTES, Extent, Lines, Span, count_bytes, ending_of, lines_of, open_bytes
from longmlm.data.foreign_content import check_content, head_of
from longmlm.data.texts import (
    BAD_ENCODING,
    BROKEN_CSV,
    BYTE_ORDER_MARK,
    REMEDIES,
    FieldsRecord,
    Unreadable,
    text_or_reason,
)
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath, located
from longmlm.processes import overlapping
from longmlm.settings.prepare import Quoting, Source

FIELD_CHARACTERS = 1 << 27  # a quote that is never closed would hold the rest of a file in memory
HEAD_BYTES = 1 << 20  # of a file, that show whether its fields are in quotes
NO_HEADER = "; or set delimiter, or add a header, a line of names, if it has none"

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


def extent_of_csv(path: AnyPath, source: Source) -> Extent:
    """Returns the length of a file in bytes, and where records begin; raises DataError if it has no column of text."""
    _header(path, source)
    length = count_bytes(path)
    return Extent(length, borders=_borders(path, length, source))


def fields_of_csv(span: Span, source: Source) -> Iterator[FieldsRecord]:
    """Yields the offset and the fields of each record of a span after the header, or why it is broken."""
    path = located(span.path)
    names = _header(path, source)
    with lines_of(span) as lines:
        records = _records(path, lines, span.end, source)
        if not span.start:
            next(records)
        for begin, cells in records:
            if isinstance(cells, list) and len(cells) == len(names):
                yield begin, by_name(names, [_text_of(cell) for cell in cells])
            else:
                yield begin, Unreadable(BROKEN_CSV)


def _borders(path: AnyPath, length: int, source: Source) -> Iterator[int]:
    with open_bytes(path) as stream:
        for begin, _ in _records(path, Lines(stream), length, source):
            yield begin


def _header(path: AnyPath, source: Source) -> list[str]:
    check_content(path)
    with open_bytes(path) as stream:
        _, names = next(_records(path, Lines(stream), CHUNK_BYTES, source), (0, list[str]()))
    if isinstance(names, Unreadable):
        raise DataError(f"{path}: its first line is not a header, a line of names, or its lines end in CR alone")
    if any(isinstance(_text_of(name), Unreadable) for name in names):
        raise DataError(f"{path} has a header that is not UTF-8: {REMEDIES[BAD_ENCODING]}")
    for field in source.read_fields:
        check_column(str(path), field, names, source, NO_HEADER)
    return names


def _records(path: AnyPath, lines: Lines, end: int, source: Source) -> Iterator[tuple[int, Cells]]:
    """Yields the offset and the fields of each record that begins before `end`; blank lines are not records.

    Starts at a line that begins a record. Raises DataError where quotes break their rules.
    """
    quoting = _quoting(path, source)
    line = b""

    def decoded() -> Iterator[str]:
        nonlocal line
        while line := lines.read():
            is_first = lines.offset == len(line)
            yield _decoded(line.removeprefix(BYTE_ORDER_MARK) if is_first else line)

    how = csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL
    reader = csv.reader(decoded(), delimiter=_delimiter(path, source), quoting=how, strict=True)
    while (begin := lines.offset) < end:
        try:
            with long_fields():
                cells: Cells | None = next(reader, None)
        except csv.Error as error:
            ends_with_its_line = quoting == "none" or ("new-line" in str(error) and b'"' not in line)
            if not ends_with_its_line:
                raise DataError(
                    f"{path}: the record that begins in line {_line_number(path, begin):,} breaks the rules of quoting "
                    f'({error}): write two quotes for one inside a field, or set quoting to "none" if quotes are text'
                ) from error
            cells = Unreadable(BROKEN_CSV)
        if cells is None:
            return
        if cells:
            yield begin, cells


def _line_number(path: AnyPath, offset: int) -> int:
    with open_bytes(path) as stream:
        lines, number = Lines(stream), 1
        while lines.offset < offset:
            lines.read()
            number += 1
    return number


def _delimiter(path: AnyPath, source: Source) -> str:
    return source.delimiter or ("\t" if ending_of(path) == ".tsv" else ",")


def _quoting(path: AnyPath, source: Source) -> Quoting:
    """Returns whether fields are in quotes or quotes are text: the setting or, if tabs separate fields, what fits.

    Without quotes, a text could not have a comma or semicolon.
    """
    delimiter = _delimiter(path, source)
    if source.quoting or delimiter in (",", ";"):
        return source.quoting or "double"
    head = head_of(path, HEAD_BYTES)
    if is_cut := len(head) >= HEAD_BYTES - len(BYTE_ORDER_MARK):
        head = head[: head.rfind(b"\n") + 1]
    if quoting := quoting_of(_decoded(head), delimiter, is_cut):
        return quoting
    raise DataError(
        f"{path}: some of its first records have more or fewer fields than its header, whether or not quotes are text: "
        'set quoting to "double" if fields are in quotes, to "none" if quotes are text'
    )


def quoting_of(head: str, delimiter: str, is_cut: bool = False) -> Quoting | None:
    """Returns the way of reading quotes in which all lines at the beginning of a file have the fields of its header.

    Where both ways do, quotes are text, unless a quoted field has two quotes for one inside, or a table of one column
    has fields of several lines. None where neither does. If the file goes on after these lines (`is_cut`), the last
    record may end within quotes.
    """
    mark = re.escape(delimiter)
    lines = [line for line in head.split("\n") if line.strip("\r")]
    if lines and re.match(rf'(?:[^"]*{mark})?"', lines[0]):
        return "double"
    as_text, in_quotes = [line.split(delimiter) for line in lines], _read_with_quotes(head, delimiter, is_cut)
    is_text, is_quoted = _has_equal_lengths(as_text), _has_equal_lengths(in_quotes)
    is_doubled = re.search(rf'(?:^|{mark})"[^"\n]*(?:""[^"\n]*)+"(?=[\r\n{mark}]|\Z)', head, re.MULTILINE) is not None
    has_long_fields = is_text and len(as_text[0]) == 1 and len(in_quotes) < len(as_text)
    if is_quoted and (is_doubled or has_long_fields or not is_text):
        return "double"
    has_quoted = re.search(rf'(?:^|{mark})"', head, re.MULTILINE) is not None
    return None if has_quoted and (is_doubled or not is_text) else "none"


def _read_with_quotes(head: str, delimiter: str, is_cut: bool) -> list[list[str]]:
    """Returns the records with fields in quotes; none if they break the rules."""
    records = list[list[str]]()
    try:
        with long_fields():
            records.extend(filter(None, csv.reader(io.StringIO(head, newline="\n"), delimiter=delimiter, strict=True)))
    except csv.Error as error:
        return records if is_cut and "end of data" in str(error) else []
    return records


def _has_equal_lengths(records: list[list[str]]) -> bool:
    return len({len(record) for record in records}) == 1


def _decoded(line: bytes) -> str:
    return line.decode(errors="surrogateescape")


def _text_of(cell: str) -> str | Unreadable:
    return text_or_reason(cell.encode(errors="surrogateescape"))
