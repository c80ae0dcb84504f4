"""Records of .txt, .jsonl, .json, .csv, .parquet and Arrow files, and the offsets at which slices may cut them."""

from collections.abc import Iterator

from longmlm.data.columns import extent_of_table, fields_of_table
from longmlm.data.delimited import extent_of_csv, fields_of_csv
from longmlm.data.files import Extent, Span, count_bytes, kind_of, lines_of, open_bytes
from longmlm.data.foreign_content import HEAD_BYTES, check_content, foreign_content
from longmlm.data.json_objects import elements_of, object_of
from longmlm.data.texts import BYTE_ORDER_MARK, FieldsRecord, Unreadable, text_in, text_or_reason, value_at
from longmlm.hubs.storage import AnyPath, is_url, located
from longmlm.settings.prepare import COMPRESSED, Source

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
            return extent_of_csv(path, source)
        case ".json":
            check_content(path)
            length = count_bytes(path)
            return Extent(length, borders=(begin for begin, _ in elements_of(path, 0, length)))
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
            return fields_of_csv(span, source)
        case ".jsonl":
            return _json_fields(span)
        case ".json":
            return ((begin, object_of(element)) for begin, element in elements_of(path, span.start, span.end))
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
            text = line.removeprefix(BYTE_ORDER_MARK)
            if text and not text.isspace():
                yield lines.offset - len(line), object_of(line)
            del line, text  # it may be long: release it before the next one is read
