"""Columns of Parquet and Arrow files: the text of each record, or all of its fields."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from longmlm.data.files import CHUNK_BYTES, Extent, Span, open_bytes
from longmlm.data.texts import BAD_ENCODING, Fields, Unreadable
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath, located
from longmlm.settings.prepare import Source

BATCH_BYTES = 8_000_000
BATCH_RECORDS = 1_000
SAMPLED, FAR_MORE = 32, 2
DICTIONARY_BYTES, INDEX_BYTES = 2_000_000, 4  # most writers limit the dictionary of a row group to 1 MB
MAX_NAME = 40  # characters of a column's name in a message
LIST_PART = re.compile(r"\.list\.\w+")  # in the path of a Parquet column; users name only the list
TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)

ClassNames = list[str] | dict[str, Any]  # names by number, or those of the fields of a record


def extent_of_table(path: AnyPath, source: Source) -> Extent:
    """Returns the number of records; raises DataError if there is no column of text."""
    if path.suffix == ".parquet":
        with _parquet_file(path, source) as file:
            return Extent(file.metadata.num_rows, _record_bytes(file, source.fields))
    table = _arrow_table(path, source)
    return Extent(len(table), _mean_bytes(table.select(_columns_of(source.fields, table.schema.names))))


def fields_of_table(span: Span, source: Source, only_text: bool) -> Iterator[tuple[int, Fields]]:
    """Yields the number and the fields of every record of a span, or only its text.

    The number of a class becomes its name, where a dataset has names. Raises DataError if a field of the source is not
    a column of text or of lists of text.
    """
    path, fields = located(span.path), source.read_fields if only_text else ()
    if path.suffix == ".parquet":
        with _parquet_file(path, source) as file:
            yield from _table_fields(_parquet_batches(file, span, fields), file.schema_arrow, span.start)
    else:
        table = _arrow_table(path, source)
        part = table.select(_columns_of(fields, table.schema.names)) if fields else table
        part = part[span.start : span.end]
        yield from _table_fields(part.to_batches(_batch_records(_mean_bytes(part))), table.schema, span.start)


def _parquet_file(path: AnyPath, source: Source) -> pq.ParquetFile:
    file = pq.ParquetFile(cast(Any, path if isinstance(path, Path) else open_bytes(path)), buffer_size=CHUNK_BYTES)
    _check_text_columns(str(path), source, file.schema_arrow)
    return file


def _columns_of(fields: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Returns the paths of the columns that hold one of the fields, a part of one, or a field that contains one."""
    names = {path: f"{LIST_PART.sub('', path)}." for path in paths}
    wanted = [f"{field}." for field in fields]
    return [
        path
        for path, name in names.items()
        if any(name.startswith(field) or field.startswith(name) for field in wanted)
    ]


def _record_bytes(file: pq.ParquetFile, fields: Sequence[str], number: int = 0) -> float:
    """Returns the mean bytes of these fields in a record: as stored or, if texts repeat, as read from a row group.

    A dictionary holds a text once, however many records have it. Texts repeat if the first of them have more bytes than
    a row group stores for all; it is only read if its texts may all be in a dictionary.
    """
    read = _columns_of(fields, [file.schema.column(index).path for index in range(len(file.schema))])
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    columns = [[group.column(index) for index in range(group.num_columns)] for group in groups]
    stored = [sum(one.total_uncompressed_size for one in own if one.path_in_schema in read) for own in columns]
    if number < len(groups) and stored[number] <= DICTIONARY_BYTES + INDEX_BYTES * groups[number].num_rows:
        num_records = num_bytes = 0.0
        for batch in file.iter_batches(SAMPLED, row_groups=[number], columns=read):
            num_records, num_bytes = num_records + len(batch), num_bytes + _mean_bytes(batch) * len(batch)
            if num_bytes > max(BATCH_BYTES, FAR_MORE * stored[number]):
                break
        if num_bytes > FAR_MORE * stored[number]:
            return num_bytes / num_records
    return max(1, sum(stored)) / max(1, file.metadata.num_rows)


def _mean_bytes(records: pa.RecordBatch | pa.Table) -> float:
    """Returns the mean bytes of a record; if a column has a dictionary, of a sample in which it is decoded."""
    if any(pa.types.is_dictionary(kind) for kind in records.schema.types):
        records = records[:SAMPLED]
    columns = (one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in records.columns)
    return max(1, sum(column.nbytes for column in columns)) / max(1, len(records))


def _batch_records(record_bytes: float) -> int:
    """Returns how many records of this size are read at once."""
    return max(1, min(BATCH_RECORDS, int(BATCH_BYTES / max(1, record_bytes))))


def _parquet_batches(file: pq.ParquetFile, span: Span, fields: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the records of a span with these fields, or all; only row groups with some of them are read."""
    ends = [*accumulate(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))]
    first, last = bisect_right(ends, span.start), bisect_left(ends, span.end)
    begin = ends[first - 1] if first else 0
    num_records = _batch_records(_record_bytes(file, fields, first)) if fields else BATCH_RECORDS
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    columns = _columns_of(fields, paths) if fields else None
    groups = [*range(first, min(last + 1, len(ends)))]
    for batch in file.iter_batches(num_records, row_groups=groups, columns=columns):
        yield batch[max(0, span.start - begin) : max(0, span.end - begin)]
        begin += len(batch)
        if begin >= span.end:
            break


def _arrow_table(path: AnyPath, source: Source) -> pa.Table:
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    _check_text_columns(source.name_of(str(path)), source, table.schema)
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


def _check_text_columns(name: str, source: Source, schema: pa.Schema) -> None:
    """Raises DataError unless each field of the source is a column, or a field in one, and those of the text hold text.

    Lists of text are text.
    """
    columns = pa.struct([(one.name, one.type) for one in schema])
    for field in source.read_fields:
        kind = _type_at(columns, field)
        if kind is None or schema.names.count(field) > 1:
            check_column(name, field, schema.names, source)
        if field in source.fields and not any(is_text(kind) for is_text in TEXT_TYPES):
            raise DataError(
                f"{name}: column {field!r} holds {kind}, not text: set {source.setting_of(field)} to a column of text, "
                "or convert this one"
            )


def _type_at(kind: pa.DataType, field: str) -> pa.DataType | None:
    """Returns the type of a field, or of one inside others, as `value_at` finds it; for a list, that of its items."""
    while isinstance(kind, (*LISTS, pa.DictionaryType)):
        kind = kind.value_type
    if not field:
        return kind
    if not pa.types.is_struct(kind):
        return None
    names = [one.name for one in kind]
    for end in (len(field), *(index for index, character in enumerate(field) if character == ".")):
        if field[:end] in names and (found := _type_at(kind[names.index(field[:end])].type, field[end + 1 :])):
            return found
    return None


def check_column(name: str, field: str, names: list[str], source: Source, other_remedy: str = "") -> None:
    """Raises DataError unless exactly one column has the name of a field of the source."""
    if names.count(field) > 1:
        raise DataError(f"{name} has {names.count(field)} columns named {field!r}: rename all but the one to read")
    if field not in names:
        cut = (other if len(other) <= MAX_NAME else f"{other[:MAX_NAME]}…" for other in names)
        known = ", ".join(map(repr, cut)) or "(none)"
        setting = source.setting_of(field)
        raise DataError(f"{name} has no column {field!r}: set {setting} to one of {known}{other_remedy}")
