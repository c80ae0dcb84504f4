"""Records of .txt, .jsonl, .csv, .parquet and Arrow files, and the offsets at which slices may cut these files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from longmlm.data.delimited import DelimitedReader
from longmlm.data.files import CHUNK_BYTES, Lines, Span, count_bytes, kind_of, lines_of, open_bytes
from longmlm.data.texts import BAD_ENCODING, BYTE_ORDER_MARK, LongText, Text, Unreadable, json_of, text_or_reason
from longmlm.errors import DataError
from longmlm.settings.prepare import Source

Value = TypeVar("Value")

BATCH_BYTES = 8_000_000
BATCH_RECORDS = 1_000
DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of a file in bytes or records, and the bytes of text in each of these units."""

    length: int
    unit_bytes: float = 1.0


Record = tuple[int, Text | Unreadable]
ClassNames = list[str] | dict[str, Any]  # names by number, or those of the fields of a record
Fields = dict[str, Any]  # of a record: values as in JSON, but strings only in .csv files


def extent_of(path: Path, source: Source) -> Extent:
    """Returns the length of a file; raises DataError if it has no column of text."""
    match kind_of(path):
        case ".parquet":
            return _parquet_extent(path, source.text_field)
        case ".arrow":
            table = _arrow_table(path, source.text_field)
            return Extent(len(table), max(1, table.column(source.text_field).nbytes) / max(1, len(table)))
        case ".txt":
            return Extent(1, float(max(1, count_bytes(path))))
        case ".csv":
            _header(path, source)
    return Extent(count_bytes(path))


def borders_of(path: Path, length: int, source: Source) -> Iterator[int] | None:
    """Returns the offsets at which a .csv file may be cut, where its records begin; None for a file cut anywhere."""
    return _csv_borders(path, length, source.delimiter or ",") if kind_of(path) == ".csv" else None


def records_of(span: Span, source: Source) -> Iterator[Record]:
    """Yields the offset and the text of every record of a span; blank lines are not records."""
    path = Path(span.path)
    match kind_of(path):
        case ".parquet":
            return _parquet_records(span, source.text_field)
        case ".arrow":
            rows = _arrow_table(path, source.text_field).slice(span.start, span.end - span.start)
            return _column_records(rows.column(source.text_field).chunks, span.start)
        case ".csv":
            return _csv_records(path, span, source)
        case ".jsonl":
            return _json_values(span, partial(_json_text, field=source.text_field))
        case _:
            return _file_record(path)


def fields_of(path: Path, source: Source, number_field: str | None = None) -> Iterator[tuple[int, Fields | Unreadable]]:
    """Yields the offset and all fields of every record of a file that is not .txt; blank lines are not records.

    The number of a class becomes its name, where a dataset has names, but not in `number_field`. Raises DataError
    without a column of text or of lists of words.
    """
    match kind_of(path):
        case ".parquet":
            with pq.ParquetFile(path) as file:
                _check_text_column(path, source.text_field, file.schema_arrow, has_words=True)
                yield from _table_fields(file.iter_batches(BATCH_RECORDS), file.schema_arrow, number_field)
        case ".arrow":
            table = _arrow_table(path, source.text_field, has_words=True)
            yield from _table_fields(table.to_batches(BATCH_RECORDS), table.schema, number_field)
        case ".csv":
            names = _header(path, source)
            for begin, fields in _csv_fields(_whole(path), source, len(names)):
                values = [text_or_reason(field.encode(errors="surrogateescape")) for field in fields or ()]
                unreadable = next((value for value in values if isinstance(value, Unreadable)), None)
                broken = unreadable or (None if fields else Unreadable("broken CSV"))
                yield begin, broken or {name: _in_memory(values[names.index(name)]) for name in names}
        case _:
            for begin, value in _json_values(_whole(path), _json_object):
                is_readable = isinstance(value, dict)
                yield begin, {name: _in_memory(item) for name, item in value.items()} if is_readable else value


def _whole(path: Path) -> Span:
    return Span(str(path), 0, count_bytes(path), 0, 0)


def _in_memory(value: Any) -> Any:
    return "".join(value.pieces()) if isinstance(value, LongText) else value


def _file_record(path: Path) -> Iterator[Record]:
    with open_bytes(path) as stream:
        yield 0, text_or_reason(stream.read())


def _json_values(span: Span, value_of: Callable[[bytes], Value]) -> Iterator[tuple[int, Value]]:
    with lines_of(span) as lines:
        while lines.offset < span.end and (line := lines.read()):
            begin = lines.offset - len(line)
            if not line.isspace() and (len(line) > CHUNK_BYTES or line.strip() != BYTE_ORDER_MARK):
                yield begin, value_of(line)
            del line  # it may be long: release it before the next one is read


def _json_text(line: bytes, field: str) -> Text | Unreadable:
    value = _json_object(line)
    if isinstance(value, Unreadable):
        return value
    if field not in value:
        return Unreadable(f"no field {field!r}")
    return value[field] if isinstance(value[field], str | LongText) else Unreadable(f"field {field!r} is not text")


def _json_object(line: bytes) -> Fields | Unreadable:
    try:
        value = json_of(line.removeprefix(BYTE_ORDER_MARK))
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)
    except ValueError:
        return Unreadable(BAD_ENCODING if isinstance(text_or_reason(line), Unreadable) else "broken JSON")
    return value if isinstance(value, dict) else {}


def _header(path: Path, source: Source) -> list[str]:
    delimiter = source.delimiter or ","
    with open_bytes(path) as stream:
        _, names = next(DelimitedReader(Lines(stream), delimiter).records(CHUNK_BYTES), (0, []))
    if names is None:
        raise DataError(
            f"{path}: its first record is not a header, a line of names: it breaks the rules of quoting, or its lines "
            "end in CR alone"
        )
    others = [other for other in DELIMITERS if other != delimiter and names and other in names[0]]
    if len(names) == 1 and others and source.text_field not in names:
        raise DataError(
            f"{path} has one column, {names[0]!r}: if its fields are separated by {others[0]!r}, set the source's "
            f"delimiter to that"
        )
    _check_column(path, source.text_field, names)
    return names


def _csv_borders(path: Path, length: int, delimiter: str) -> Iterator[int]:
    with open_bytes(path) as stream:
        for begin, _ in DelimitedReader(Lines(stream), delimiter).records(length):
            yield begin


def _csv_records(path: Path, span: Span, source: Source) -> Iterator[Record]:
    names = _header(path, source)
    column = names.index(source.text_field)
    for begin, fields in _csv_fields(span, source, len(names)):
        if fields is None:
            yield begin, Unreadable("broken CSV")
        else:
            yield begin, text_or_reason(fields[column].encode(errors="surrogateescape"))


def _csv_fields(span: Span, source: Source, num_fields: int) -> Iterator[tuple[int, list[str] | None]]:
    """Yields the offset and the fields of each record after the header; None for a broken one."""
    with lines_of(span) as lines:
        records = DelimitedReader(lines, source.delimiter or ",", num_fields).records(span.end)
        if not span.start:
            next(records)
        for begin, fields in records:
            yield begin, fields if fields and len(fields) == num_fields else None


def _parquet_extent(path: Path, field: str) -> Extent:
    with pq.ParquetFile(path) as file:
        _check_text_column(path, field, file.schema_arrow)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    num_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    num_records = sum(group.num_rows for group in groups)
    return Extent(num_records, max(1, num_bytes) / max(1, num_records))


def _parquet_records(span: Span, field: str) -> Iterator[Record]:
    path = Path(span.path)
    batch_records = max(1, min(BATCH_RECORDS, int(BATCH_BYTES / _parquet_extent(path, field).unit_bytes)))
    with pq.ParquetFile(path, buffer_size=CHUNK_BYTES) as file:
        begin = 0
        for number in range(file.metadata.num_row_groups):
            following = begin + file.metadata.row_group(number).num_rows
            if begin < span.end and span.start < following:
                for batch in file.iter_batches(batch_records, row_groups=[number], columns=[field]):
                    first, last = (min(max(0, edge - begin), len(batch)) for edge in (span.start, span.end))
                    yield from _column_records([batch.column(0)[first:last]], begin + first)
                    begin += len(batch)
                    if begin >= span.end:
                        return
            begin = following


def _arrow_table(path: Path, field: str, has_words: bool = False) -> pa.Table:
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    _check_text_column(path, field, table.schema, has_words)
    return table


def _table_fields(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, number_field: str | None
) -> Iterator[tuple[int, Fields | Unreadable]]:
    names_of, number = _class_names(schema), 0
    names_of.pop(str(number_field), None)
    for batch in batches:
        for index in range(len(batch)):
            try:
                fields = batch.slice(index, 1).to_pylist()[0]
                yield number, fields | {name: _named(fields[name], names) for name, names in names_of.items()}
            except UnicodeDecodeError:
                yield number, Unreadable(BAD_ENCODING)
            number += 1


def _class_names(schema: pa.Schema) -> dict[str, ClassNames]:
    """Returns the names of classes by column, from the description that `datasets` stores in a file."""
    described = orjson.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = (described.get("info") or {}).get("features") or {}
    found = {name: _names_in(feature) for name, feature in features.items()}
    return {name: names for name, names in found.items() if names}


def _names_in(feature: Any) -> ClassNames:
    """Returns the names of a class, or of the classes in the fields of a record; of a list, those of its items."""
    if isinstance(feature, list):
        return _names_in(feature[0]) if feature else {}
    if not isinstance(feature, dict):
        return {}
    if feature.get("_type") == "ClassLabel":
        return feature.get("names") or {}
    if "feature" in feature and isinstance(feature.get("_type"), str):
        return _names_in(feature["feature"])
    found = {name: _names_in(inner) for name, inner in feature.items() if isinstance(inner, dict | list)}
    return {name: names for name, names in found.items() if names}


def _named(value: Any, names: ClassNames) -> Any:
    """Returns a value with names in place of the numbers of classes; None in place of -1, a missing one."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(names, list):
        return names[value] if value is not None and value >= 0 else None
    if not isinstance(value, dict):
        return value
    return value | {name: _named(value[name], inner) for name, inner in names.items() if name in value}


def _column_records(arrays: Iterable[pa.Array], start: int) -> Iterator[Record]:
    """Yields the values of a column of text; the first one is record `start`."""
    for array in arrays:
        for value in array.cast(pa.large_string()).cast(pa.large_binary()):
            raw = value.as_buffer() if value.is_valid else None
            yield start, Unreadable("null") if raw is None else text_or_reason(raw.to_pybytes())
            start += 1


def _check_text_column(path: Path, field: str, schema: pa.Schema, has_words: bool = False) -> None:
    """Raises DataError if there is no column of text or, with `has_words`, of lists of words."""
    _check_column(path, field, schema.names)
    kind = schema.field(field).type
    if has_words and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        kind = kind.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{path}: column {field!r} holds {kind}, not text: set text_field to a column of text")


def _check_column(path: Path, field: str, names: list[str]) -> None:
    if field not in names:
        raise DataError(f"{path} has no column {field!r}: set text_field to one of {', '.join(names) or '(none)'}")
