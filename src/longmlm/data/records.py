"""Records of .txt, .jsonl, .csv, .parquet and Arrow files, and the offsets at which slices may cut these files."""

from collections.abc import Iterator
from pathlib import Path

from longmlm.data.columns import by_name, check_column, check_split_column, extent_of_table, fields_of_table
from longmlm.data.delimited import BROKEN, Cells, DelimitedReader
from longmlm.data.files import CHUNK_BYTES, Extent, Lines, Span, count_bytes, kind_of, lines_of, open_bytes
from longmlm.data.foreign_content import HEAD_BYTES, check_content, foreign_content, remedy_of
from longmlm.data.json_lines import object_of
from longmlm.data.texts import BAD_ENCODING, BYTE_ORDER_MARK, FieldsRecord, Unreadable, text_in, text_or_reason
from longmlm.errors import DataError
from longmlm.settings.prepare import Source

DELIMITERS = (",", ";", "\t", "|")
WHOLE_FILE = 1 << 62
TO_SPLIT_BY = " to split by"  # ends the reason of a record without a group


def extent_of(path: Path, source: Source) -> Extent:
    """Returns the length of a file, and where it may be cut; raises DataError if it has no column of text."""
    match kind_of(path):
        case ".parquet" | ".arrow":
            return extent_of_table(path, source)
        case ".txt":
            return Extent(1, float(max(1, count_bytes(path))))
        case ".csv":
            _header(path, source)
            length = count_bytes(path)
            return Extent(length, borders=_csv_borders(path, length, source))
        case _:
            check_content(path)
            return Extent(count_bytes(path))


def records_of(span: Span, source: Source) -> Iterator[tuple[int, str | Unreadable, str | None]]:
    """Yields the offset, the text and the group of every record of a span; blank lines are not records.

    The group is the value of the source's `split_field`; None without one. A record without a value there has no text.
    """
    for begin, fields in _fields(span, source, only_text=True):
        text, group = text_in(fields, source.text_field), None
        if source.split_field and isinstance(fields, dict) and isinstance(text, str):
            group = fields.get(source.split_field)
            if group is None or group == "" or isinstance(group, Unreadable):
                text = Unreadable(f"no field {source.split_field!r}{TO_SPLIT_BY}")
        yield begin, text, None if group is None else str(group)


def fields_of(path: Path, source: Source) -> Iterator[FieldsRecord]:
    """Yields the offset and all fields of every record of a file; blank lines are not records.

    The number of a class becomes its name, where a dataset has names. Raises DataError
    without a column of text or of lists of words.
    """
    if kind_of(path) == ".jsonl":
        check_content(path)
    return _fields(_whole(path), source, only_text=False)


def _fields(span: Span, source: Source, only_text: bool) -> Iterator[FieldsRecord]:
    path = Path(span.path)
    match kind_of(path):
        case ".parquet" | ".arrow":
            return fields_of_table(span, source, only_text)
        case ".csv":
            return _csv_fields(path, span, source)
        case ".jsonl":
            return _json_fields(span)
        case _:
            return _text_field(path, source)


def fields_of_objects(path: Path) -> list[str]:
    """Returns the names in the first object of a file of JSON lines; none for another file."""
    values = (value for _, value in _json_fields(_whole(path))) if kind_of(path) == ".jsonl" else ()
    return list(next((value for value in values if isinstance(value, dict)), {}))


def _whole(path: Path) -> Span:
    return Span(str(path), 0, WHOLE_FILE, 0, 0)


def _text_field(path: Path, source: Source) -> Iterator[FieldsRecord]:
    with open_bytes(path) as stream:
        raw = stream.read()
    content = foreign_content(raw[:HEAD_BYTES])
    yield 0, Unreadable(content) if content else {source.text_field: text_or_reason(raw.removeprefix(BYTE_ORDER_MARK))}


def _json_fields(span: Span) -> Iterator[FieldsRecord]:
    with lines_of(span) as lines:
        while lines.offset < span.end and (line := lines.read()):
            begin = lines.offset - len(line)
            if not line.isspace() and (len(line) > CHUNK_BYTES or line.strip() != BYTE_ORDER_MARK):
                yield begin, object_of(line)
            del line  # it may be long: release it before the next one is read


def _header(path: Path, source: Source) -> list[str]:
    check_content(path)
    delimiter = source.delimiter or ","
    names = _first_record(path, delimiter)
    has_field = isinstance(names, list) and source.text_field in names
    if not has_field and (other := _other_delimiter(path, source.text_field, names, delimiter)):
        raise DataError(f"{path} seems to have fields separated by {other!r}: set the source's delimiter to that")
    if isinstance(names, Unreadable):
        raise DataError(
            f"{path}: its first record is not a header, a line of names: it breaks the rules of quoting, or its lines "
            "end in CR alone"
        )
    if any(isinstance(_text_of_cell(name), Unreadable) for name in names):
        raise DataError(f"{path} has a header that is not UTF-8: {remedy_of(BAD_ENCODING, source.language)}")
    check_column(str(path), source.text_field, names, "; or add a header, a line of names, if it has none")
    check_split_column(str(path), source, names)
    return names


def _other_delimiter(path: Path, field: str, names: Cells, delimiter: str) -> str | None:
    """Returns the delimiter with which the header names the field, or that which is in the only name."""
    others = [other for other in DELIMITERS if other != delimiter]
    for other in others:
        record = _first_record(path, other)
        if isinstance(record, list) and field in record:
            return other
    only = names[0] if isinstance(names, list) and len(names) == 1 else ""
    return next((other for other in others if other in only), None)


def _first_record(path: Path, delimiter: str) -> Cells:
    with open_bytes(path) as stream:
        return next(DelimitedReader(Lines(stream), delimiter).records(CHUNK_BYTES), (0, []))[1]


def _csv_borders(path: Path, length: int, source: Source) -> Iterator[int]:
    with open_bytes(path) as stream:
        for begin, _ in DelimitedReader(Lines(stream), source.delimiter or ",").records(length):
            yield begin


def _csv_fields(path: Path, span: Span, source: Source) -> Iterator[FieldsRecord]:
    """Yields the offset and the fields of each record after the header, or why it is broken."""
    names = _header(path, source)
    with lines_of(span) as lines:
        records = DelimitedReader(lines, source.delimiter or ",", len(names)).records(span.end)
        if not span.start:
            next(records)
        for begin, cells in records:
            if isinstance(cells, Unreadable):
                yield begin, cells
            elif len(cells) != len(names):
                yield begin, Unreadable(BROKEN)
            else:
                yield begin, by_name(names, [_text_of_cell(cell) for cell in cells])


def _text_of_cell(cell: str) -> str | Unreadable:
    return text_or_reason(cell.encode(errors="surrogateescape"))
