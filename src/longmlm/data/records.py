"""Files to records: what stands in each .txt, .jsonl, .csv, .parquet and Arrow file, and where it may be cut."""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from longmlm.data.files import CHUNK_BYTES, kind_of, open_bytes, size_of
from longmlm.data.texts import LongText, Text, json_of, text_of
from longmlm.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BATCH_BYTES = 8_000_000
BATCH_RECORDS = 1_000
CSV_FIELD_CHARACTERS = 1 << 25


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that holds no text, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a file is, in bytes or in records, with the bytes of text to each; a whole file is never cut."""

    length: int
    unit_bytes: float = 1.0
    whole: bool = False


Record = tuple[int, Text | Unreadable]


def extent_of(path: Path, field: str) -> Extent:
    """Returns how long the file is, by what its records are counted; raises DataError for one that lacks the column."""
    match kind_of(path):
        case ".parquet":
            return _parquet_extent(path, field)
        case ".arrow":
            return _arrow_extent(path, field)
        case ".csv":
            _header(path, field)
            return Extent(size_of(path))
        case kind:
            return Extent(size_of(path), whole=kind == ".txt")


def borders_of(path: Path) -> Iterator[int] | None:
    """Yields where the records of a CSV file begin, the only places to cut it; None for files cut at any place."""
    return (begin for begin, _ in _csv_rows(path, 0)) if kind_of(path) == ".csv" else None


def records_of(path: Path, start: int, end: int, field: str) -> Iterator[Record]:
    """Yields every record that begins at start <= place < end, blank lines left out, with its place."""
    match kind_of(path):
        case ".parquet":
            return _parquet_records(path, start, end, field)
        case ".arrow":
            return _column_records(_arrow_table(path, field).slice(start, end - start).column(field).chunks, start)
        case ".csv":
            return _csv_records(path, start, end, field)
        case ".jsonl":
            return _json_records(path, start, end, field)
        case _:
            return _whole_file(path)


def _whole_file(path: Path) -> Iterator[Record]:
    with open_bytes(path) as stream:
        yield 0, _text(stream.read())


def _json_records(path: Path, start: int, end: int, field: str) -> Iterator[Record]:
    with open_bytes(path, max(0, start - 1)) as stream:
        offset = start
        if offset:
            offset += len(stream.readline()) - 1
        while offset < end and (line := stream.readline()):
            size = len(line)
            if not line.isspace() and (size > CHUNK_BYTES or line.strip() != BYTE_ORDER_MARK):
                yield offset, _json_text(line, field)
            offset += size
            del line  # before the next is read, because it may be long


def _json_text(line: bytes, field: str) -> Text | Unreadable:
    try:
        value = json_of(line.removeprefix(BYTE_ORDER_MARK))
    except UnicodeDecodeError:
        return Unreadable("bad UTF-8")
    except ValueError:
        return Unreadable("bad UTF-8" if isinstance(_text(line), Unreadable) else "broken JSON")
    if not isinstance(value, dict) or field not in value:
        return Unreadable(f"no field {field!r}")
    return value[field] if isinstance(value[field], str | LongText) else Unreadable(f"field {field!r} is no text")


def _text(raw: bytes) -> Text | Unreadable:
    try:
        return text_of(raw.removeprefix(BYTE_ORDER_MARK))
    except UnicodeDecodeError:
        return Unreadable("bad UTF-8")


class _Lines:
    """The lines of a stream, which knows at which byte the next one begins."""

    def __init__(self, stream: io.BufferedIOBase, offset: int) -> None:
        self.stream, self.offset = stream, offset

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self.stream.readline()
        if not line:
            raise StopIteration
        text = (line if self.offset else line.removeprefix(BYTE_ORDER_MARK)).decode(errors="surrogateescape")
        self.offset += len(line)
        return text


def _csv_rows(path: Path, start: int) -> Iterator[tuple[int, list[str] | None]]:
    """Yields the fields of each record from `start` on, the header at 0; None for one that breaks the rules."""
    csv.field_size_limit(CSV_FIELD_CHARACTERS)
    with open_bytes(path, start) as stream:
        lines = _Lines(stream, start)
        rows = csv.reader(lines, strict=True)
        while True:
            begin = lines.offset
            try:
                fields = next(rows)
            except StopIteration:
                return
            except csv.Error:
                yield begin, None
            else:
                if fields:
                    yield begin, fields


def _header(path: Path, field: str) -> list[str]:
    header = next((fields for _, fields in _csv_rows(path, 0)), None) or []
    return _checked_columns(path, field, header)


def _csv_records(path: Path, start: int, end: int, field: str) -> Iterator[Record]:
    header = _header(path, field)
    rows = _csv_rows(path, start)
    if not start:
        next(rows)
    for begin, fields in rows:
        if begin >= end:
            return
        if fields is None or len(fields) != len(header):
            yield begin, Unreadable("broken CSV")
        else:
            yield begin, _text(fields[header.index(field)].encode(errors="surrogateescape"))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise DataError(f"{path} is damaged, or no Parquet file ({error}): fetch it again, or leave it out") from error


def _parquet_extent(path: Path, field: str) -> Extent:
    with _readable(path), pq.ParquetFile(path) as file:
        _checked_type(path, field, file.schema_arrow)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    num_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    num_records = sum(group.num_rows for group in groups)
    return Extent(num_records, max(1, num_bytes) / max(1, num_records))


def _parquet_records(path: Path, start: int, end: int, field: str) -> Iterator[Record]:
    batch_records = max(1, min(BATCH_RECORDS, int(BATCH_BYTES / _parquet_extent(path, field).unit_bytes)))
    with _readable(path), pq.ParquetFile(path, buffer_size=CHUNK_BYTES) as file:
        begin = 0
        for number in range(file.metadata.num_row_groups):
            following = begin + file.metadata.row_group(number).num_rows
            if begin < end and start < following:
                for batch in file.iter_batches(batch_records, row_groups=[number], columns=[field]):
                    first, last = max(start - begin, 0), min(end - begin, len(batch))
                    yield from _column_records([batch.column(0)[first : max(first, last)]], begin + first)
                    begin += len(batch)
                    if begin >= end:
                        return
            begin = following


def _arrow_table(path: Path, field: str) -> pa.Table:
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    _checked_type(path, field, table.schema)
    return table


def _arrow_extent(path: Path, field: str) -> Extent:
    table = _arrow_table(path, field)
    return Extent(len(table), max(1, table.column(field).nbytes) / max(1, len(table)))


def _column_records(arrays: Iterable[pa.Array], start: int) -> Iterator[Record]:
    """Yields the values of a column of text, whose first one stands at `start`."""
    for array in arrays:
        for value in array.cast(pa.large_string()).cast(pa.large_binary()):
            raw = value.as_buffer() if value.is_valid else None
            yield start, Unreadable("null") if raw is None else _text(raw.to_pybytes())
            start += 1


def _checked_type(path: Path, field: str, schema: pa.Schema) -> None:
    _checked_columns(path, field, schema.names)
    kind = schema.field(field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{path}: column {field!r} holds {kind}, no text: name another one in text_field")


def _checked_columns(path: Path, field: str, names: list[str]) -> list[str]:
    if field not in names:
        there = ", ".join(names) or "none"
        raise DataError(f"{path} has no column {field!r}: name one in text_field; there are {there}")
    return names
