"""Records of .txt, .jsonl, .json, .csv, .parquet and Arrow files, and the offsets at which slices may cut them."""

from collections.abc import Iterator

from longmlm.data.columns import by_name, check_column, extent_of_table, fields_of_table
from longmlm.data.delimited import BROKEN, Cells, DelimitedReader, quoting_of
from longmlm.data.files import CHUNK_BYTES, Extent, Lines, Span, count_bytes, ending_of, kind_of, lines_of, open_bytes
from longmlm.data.foreign_content import HEAD_BYTES, check_content, foreign_content, head_of, remedy_of
from longmlm.data.json_array import ElementReader
from longmlm.data.json_lines import object_of
from longmlm.data.texts import (
    BAD_ENCODING,
    BYTE_ORDER_MARK,
    FieldsRecord,
    Unreadable,
    text_in,
    text_or_reason,
    value_at,
)
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath, is_url, located
from longmlm.settings.prepare import COMPRESSED, Quoting, Source

DELIMITERS = (",", ";", "\t", "|")
QUOTING_BYTES = 1 << 20  # of a file, that show whether its fields are in quotes
WHOLE_FILE = 1 << 62
COMPRESSION = 3  # bytes of text per byte of a compressed file


def text_bytes(path: AnyPath) -> int:
    """Returns the bytes of text in a file, without reading it: an estimate where it is compressed."""
    return path.stat().st_size * (COMPRESSION if path.suffix in COMPRESSED else 1)


def extent_of(path: AnyPath, source: Source) -> Extent:
    """Returns the length of a file, and where it may be cut; raises DataError if it has no column of text.

    A file of a dataset on the hub is not read for this; if only reading shows where its records begin, it is not cut.
    """
    is_on_hub = bool(source.dataset) and is_url(str(path))
    if is_on_hub and not (kind_of(path) == ".parquet" or (kind_of(path) == ".jsonl" and path.suffix not in COMPRESSED)):
        return Extent(WHOLE_FILE, max(1, text_bytes(path)) / WHOLE_FILE, iter(()))
    match kind_of(path):
        case ".parquet" | ".arrow":
            return extent_of_table(path, source)
        case ".txt":
            return Extent(1, float(max(1, count_bytes(path))))
        case ".csv":
            _header(path, source)
            length = count_bytes(path)
            return Extent(length, borders=_csv_borders(path, length, source))
        case ".json":
            check_content(path)
            length = count_bytes(path)
            return Extent(length, borders=_element_borders(path, length))
        case _:
            check_content(path)
            return Extent(count_bytes(path))


def records_of(span: Span, source: Source) -> Iterator[tuple[int, str | Unreadable, str | None]]:
    """Yields the offset, the text and the group of every record of a span; blank lines are not records.

    The group is the value of the source's `split_field`; None without one. A record without a value there has no text.
    """
    for begin, fields in _fields(span, source, only_text=True):
        text, group = text_in(fields, source.fields), None
        if source.split_field and isinstance(text, str):
            group = value_at(fields, source.split_field)
            if group is None or group == "" or isinstance(group, Unreadable):
                text = Unreadable(f"no field {source.split_field!r} to split by")
        yield begin, text, None if group is None else str(group)


def fields_of(path: AnyPath, source: Source) -> Iterator[FieldsRecord]:
    """Yields the offset and all fields of every record of a file; blank lines are not records.

    The number of a class becomes its name, where a dataset has names. Raises DataError if a field of the source is not
    a column of text or of lists of text.
    """
    if kind_of(path) in (".jsonl", ".json"):
        check_content(path)
    return _fields(_whole(path), source, only_text=False)


def _fields(span: Span, source: Source, only_text: bool) -> Iterator[FieldsRecord]:
    path = located(span.path)
    match kind_of(path):
        case ".parquet" | ".arrow":
            return fields_of_table(span, source, only_text)
        case ".csv":
            return _csv_fields(path, span, source)
        case ".jsonl":
            return _json_fields(span)
        case ".json":
            return _elements(path, span)
        case _:
            return _text_field(path, source)


def _whole(path: AnyPath) -> Span:
    return Span(str(path), 0, WHOLE_FILE, 0, 0)


def _text_field(path: AnyPath, source: Source) -> Iterator[FieldsRecord]:
    with open_bytes(path) as stream:
        raw = stream.read()
    content = foreign_content(raw[:HEAD_BYTES])
    yield 0, Unreadable(content) if content else {source.fields[0]: text_or_reason(raw.removeprefix(BYTE_ORDER_MARK))}


def _json_fields(span: Span) -> Iterator[FieldsRecord]:
    with lines_of(span) as lines:
        while lines.offset < span.end and (line := lines.read()):
            begin = lines.offset - len(line)
            if not line.isspace() and (len(line) > CHUNK_BYTES or line.strip() != BYTE_ORDER_MARK):
                yield begin, object_of(line)
            del line  # it may be long: release it before the next one is read


def _elements(path: AnyPath, span: Span) -> Iterator[FieldsRecord]:
    with open_bytes(path) as stream:
        for begin, element in ElementReader(stream, span.start).elements(span.end):
            yield begin, object_of(element)


def _element_borders(path: AnyPath, length: int) -> Iterator[int]:
    with open_bytes(path) as stream:
        yield from (begin for begin, _ in ElementReader(stream, 0).elements(length))


def _delimiter(path: AnyPath, source: Source) -> str:
    return source.delimiter or ("\t" if ending_of(path) == ".tsv" else ",")


def _quoting(path: AnyPath, source: Source) -> Quoting:
    """Returns whether fields are in quotes, or quotes are text: as set, or else, between tabs, as the file begins.

    Without quotes, a text could not have a comma or semicolon.
    """
    delimiter = _delimiter(path, source)
    if source.quoting or delimiter in (",", ";"):
        return source.quoting or "double"
    head = head_of(path, QUOTING_BYTES)
    if is_cut := len(head) >= QUOTING_BYTES - len(BYTE_ORDER_MARK):
        head = head[: head.rfind(b"\n") + 1]
    return quoting_of(head.decode(errors="surrogateescape"), delimiter, is_cut)


def _reader(lines: Lines, path: AnyPath, source: Source, num_fields: int = 0) -> DelimitedReader:
    return DelimitedReader(lines, _delimiter(path, source), num_fields, _quoting(path, source))


def _header(path: AnyPath, source: Source) -> list[str]:
    check_content(path)
    delimiter = _delimiter(path, source)
    names = _first_record(path, delimiter, _quoting(path, source))
    has_field = isinstance(names, list) and set(source.fields) <= set(names)
    if not has_field and (other := _other_delimiter(path, source.fields[0], names, delimiter)):
        raise DataError(f"{path} seems to have fields separated by {other!r}: set the source's delimiter to that")
    if isinstance(names, Unreadable):
        raise DataError(
            f"{path}: its first record is not a header, a line of names: it breaks the rules of quoting, or its lines "
            "end in CR alone"
        )
    if any(isinstance(_text_of_cell(name), Unreadable) for name in names):
        raise DataError(f"{path} has a header that is not UTF-8: {remedy_of(BAD_ENCODING, source.language)}")
    for field in source.read_fields:
        check_column(str(path), field, names, source, "; or add a header, a line of names, if it has none")
    return names


def _other_delimiter(path: AnyPath, field: str, names: Cells, delimiter: str) -> str | None:
    """Returns the delimiter with which the header names the field, or that which is in the only name."""
    others = [other for other in DELIMITERS if other != delimiter]
    for other in others:
        record = _first_record(path, other)
        if isinstance(record, list) and field in record:
            return other
    only = names[0] if isinstance(names, list) and len(names) == 1 else ""
    return next((other for other in others if other in only), None)


def _first_record(path: AnyPath, delimiter: str, quoting: Quoting = "double") -> Cells:
    with open_bytes(path) as stream:
        return next(DelimitedReader(Lines(stream), delimiter, quoting=quoting).records(CHUNK_BYTES), (0, []))[1]


def _csv_borders(path: AnyPath, length: int, source: Source) -> Iterator[int]:
    with open_bytes(path) as stream:
        for begin, _ in _reader(Lines(stream), path, source).records(length):
            yield begin


def _csv_fields(path: AnyPath, span: Span, source: Source) -> Iterator[FieldsRecord]:
    """Yields the offset and the fields of each record after the header, or why it is broken."""
    names = _header(path, source)
    with lines_of(span) as lines:
        records = _reader(lines, path, source, len(names)).records(span.end)
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
