"""Columns of Parquet and Arrow files: the text of each record, or all of its fields."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from longmlm.data.files import CHUNK_BYTES, Extent, Span
from longmlm.data.texts import BAD_ENCODING, Fields, Unreadable
from longmlm.errors import DataError
from longmlm.settings.prepare import Source

BATCH_BYTES = 8_000_000
BATCH_RECORDS = 1_000
MAX_NAME = 40  # characters of a column's name in a message

ClassNames = list[str] | dict[str, Any]  # names by number, or those of the fields of a record


def extent_of_table(path: Path, source: Source) -> Extent:
    """Returns the number of records; raises DataError if there is no column of text."""
    if path.suffix == ".parquet":
        with _parquet_file(path, source.text_field) as file:
            check_split_column(str(path), source, file.schema_arrow.names)
            return Extent(file.metadata.num_rows, _record_bytes(file, source.text_field))
    table = _arrow_table(path, source)
    check_split_column(source.name_of(path), source, table.schema.names)
    return Extent(len(table), max(1, table.column(source.text_field).nbytes) / max(1, len(table)))


def fields_of_table(span: Span, source: Source, only_text: bool) -> Iterator[tuple[int, Fields]]:
    """Yields the number and the fields of every record of a span, or only its text.

    The number of a class becomes its name, where a dataset has names. Raises DataError without a column of text or,
    where all fields are read, of lists of words.
    """
    path, columns = Path(span.path), [*filter(None, (source.text_field, source.split_field))] if only_text else None
    if path.suffix == ".parquet":
        with _parquet_file(path, source.text_field, has_words=not only_text) as file:
            yield from _table_fields(_parquet_batches(file, span, columns), file.schema_arrow, span.start)
    else:
        table = _arrow_table(path, source, has_words=not only_text)
        part = table.select(columns) if columns else table
        part = part[span.start : span.end]
        yield from _table_fields(
            part.to_batches(_batch_records(part.nbytes / max(1, len(part)))), table.schema, span.start
        )


def _parquet_file(path: Path, field: str, has_words: bool = False) -> pq.ParquetFile:
    file = pq.ParquetFile(path, buffer_size=CHUNK_BYTES)
    _check_text_column(str(path), field, file.schema_arrow, has_words)
    return file


def _record_bytes(file: pq.ParquetFile, field: str) -> float:
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    num_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)
    return max(1, num_bytes) / max(1, file.metadata.num_rows)


def _batch_records(record_bytes: float) -> int:
    """Returns how many records of this size are read at once."""
    return max(1, min(BATCH_RECORDS, int(BATCH_BYTES / max(1, record_bytes))))


def _parquet_batches(file: pq.ParquetFile, span: Span, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields the records of a span; only row groups with some of them are read."""
    ends = [*accumulate(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))]
    first, last = bisect_right(ends, span.start), bisect_left(ends, span.end)
    begin = ends[first - 1] if first else 0
    num_records = _batch_records(_record_bytes(file, columns[0])) if columns else BATCH_RECORDS
    groups = [*range(first, min(last + 1, len(ends)))]
    for batch in file.iter_batches(num_records, row_groups=groups, columns=columns):
        yield batch[max(0, span.start - begin) : max(0, span.end - begin)]
        begin += len(batch)
        if begin >= span.end:
            break


def _arrow_table(path: Path, source: Source, has_words: bool = False) -> pa.Table:
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    _check_text_column(source.name_of(path), source.text_field, table.schema, has_words)
    return table


def _table_fields(batches: Iterable[pa.RecordBatch], schema: pa.Schema, number: int) -> Iterator[tuple[int, Fields]]:
    names_of = _class_names(schema)
    for batch in batches:
        names = batch.schema.names
        columns = [_cells(column, names_of.get(name)) for name, column in zip(names, batch.columns, strict=True)]
        for values in zip(*columns, strict=True):
            yield number, by_name(names, values)
            number += 1


def _cells(column: pa.Array, names: ClassNames | None) -> list[Any]:
    """Returns the values of a column; one that cannot be read becomes the reason."""
    try:
        return [_named(value, names) for value in column.to_pylist()]
    except (ValueError, OverflowError, IndexError):
        return [_cell(value, names) for value in column]


def _cell(scalar: pa.Scalar, names: ClassNames | None) -> Any:
    try:
        return _named(scalar.as_py(), names)
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)
    except IndexError:
        return Unreadable("a class without a name")
    except (ValueError, OverflowError) as error:
        return Unreadable(str(error))


def by_name(names: Sequence[str], values: Sequence[Any]) -> Fields:
    """Returns the values of a record; a name that several columns have stands for none of them."""
    fields = dict(zip(names, values, strict=True))
    for name in names if len(fields) < len(names) else ():
        if names.count(name) > 1:
            fields[name] = Unreadable(f"several columns are named {name!r}")
    return fields


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


def _named(value: Any, names: ClassNames | None) -> Any:
    """Returns a value with names in place of the numbers of classes; None in place of -1, a missing one."""
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(names, list):
        return names[value] if value is not None and value >= 0 else None
    if not isinstance(value, dict):
        return value
    return value | {name: _named(value[name], inner) for name, inner in names.items() if name in value}


def _check_text_column(name: str, field: str, schema: pa.Schema, has_words: bool = False) -> None:
    """Raises DataError if there is no column of text or, with `has_words`, of lists of words."""
    check_column(name, field, schema.names)
    kind = schema.field(field).type
    if has_words and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        kind = kind.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"{name}: column {field!r} holds {kind}, not text: set text_field to a column of text, or convert this one"
        )


def check_column(name: str, field: str, names: list[str], other_remedy: str = "") -> None:
    """Raises DataError unless exactly one column has this name."""
    if names.count(field) > 1:
        raise DataError(
            f"{name} has {names.count(field)} columns named {field!r}: rename all but the one with the text"
        )
    if field not in names:
        known = ", ".join(other if len(other) <= MAX_NAME else f"{other[:MAX_NAME]}…" for other in names) or "(none)"
        raise DataError(f"{name} has no column {field!r}: set text_field to one of {known}{other_remedy}")


def check_split_column(name: str, source: Source, names: Sequence[str]) -> None:
    """Raises DataError if there is no column that the documents are to be split by."""
    if source.split_field and source.split_field not in names:
        raise DataError(f"{name} has no column {source.split_field!r}: set split_field to one of {', '.join(names)}")
