"""Packed rows: one row, the Arrow shards that hold them, and the rows of a folder or of the hub, memory-mapped."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from longmlm.artifacts.rows import SPLITS, RowsManifest, Split, read_rows_manifest, shards_of
from longmlm.data.row import Row, SpecialTokens
from longmlm.data.shard_checks import REMEDY, check_shards
from longmlm.errors import DataError, FolderError
from longmlm.folders import sync, verify
from longmlm.hubs.datasets import commit_of, download, rows_on_hub
from longmlm.temporary import replaced_file

ROWS_PER_RECORD_BATCH = 512


COLUMNS = [column.name for column in fields(Row)]


def shard_schema(vocabulary_size: int, pairs: bool = False, words: bool = False) -> pa.Schema:
    """Returns the columns of a shard, token ids in the smallest type that holds the vocabulary.

    `pairs` and `words` add the columns of such rows.
    """
    id_type = {2: pa.uint16(), 4: pa.uint32()}[token_bytes(vocabulary_size)]
    columns = {"input_ids": id_type, "document_starts": pa.int32(), "document_sources": pa.uint16()}
    columns |= {"document_hashes": pa.uint32(), "sentence_starts": pa.int32()} if pairs else {}
    columns |= {"is_word_start": pa.bool_()} if words else {}
    return pa.schema({name: pa.list_(kind) for name, kind in columns.items()})


@dataclass(slots=True)
class Shard:
    """An Arrow stream of rows that is being written, one record batch at a time."""

    writer: pa.ipc.RecordBatchStreamWriter
    schema: pa.Schema
    waiting: list[Row] = field(default_factory=list)

    def write(self, rows: Iterable[Row]) -> None:
        """Appends rows."""
        for row in rows:
            self.waiting.append(row)
            if len(self.waiting) == ROWS_PER_RECORD_BATCH:
                self.flush()

    def flush(self) -> None:
        """Writes the rows that wait for their record batch to fill up."""
        if self.waiting:
            columns = [
                _list_array([getattr(row, item.name) for row in self.waiting], item.type) for item in self.schema
            ]
            self.writer.write_batch(pa.record_batch(columns, schema=self.schema))
            self.waiting.clear()


def _list_array(values: Sequence[np.ndarray], kind: pa.ListType) -> pa.ListArray:
    """Returns the arrays as the values of one column, without a Python object for each array.

    Raises ArrowInvalid for a value that does not fit the type.
    """
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    items = pa.array(np.concatenate(values)).cast(kind.value_type)
    return pa.ListArray.from_arrays(ends, items, type=kind)


@contextmanager
def open_shard(path: Path, schema: pa.Schema, aside: Path | None = None) -> Iterator[Shard]:
    """Yields the shard to write rows into; its file appears under its name when the block succeeds."""
    with replaced_file(path, aside) as partial:
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            shard = Shard(writer, schema)
            yield shard
            shard.flush()
        sync(partial)


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of one split, read from memory-mapped shards on access."""

    table: Dataset
    manifest: RowsManifest
    split: Split

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row_id: int) -> Row:
        record = cast(pa.Table, self.table[int(row_id)])
        columns = {name: record.column(name).to_numpy()[0] for name in record.column_names}
        return Row(**{name: it if it.dtype == bool else it.astype(np.int64) for name, it in columns.items()})

    @property
    def row_length(self) -> int:
        """Tokens of a full row; the last row of a slice may have fewer."""
        return self.manifest.plan.row_length

    def check_tokens(self, num_tokens: int, special: SpecialTokens) -> None:
        """Raises DataError for a row with an id of `num_tokens` or more, or not between both special tokens."""
        first = 0
        for chunk in cast(pa.Table, self.table.data).column("input_ids").chunks:
            ids, ends = chunk.flatten().to_numpy(), np.cumsum(chunk.value_lengths().to_numpy())
            begins, last = np.append(0, ends[:-1]), np.maximum.reduceat(ids, np.append(0, ends[:-1]))
            is_wrong = (last >= num_tokens) | (ids[begins] != special.cls) | (ids[ends - 1] != special.sep)
            if is_wrong.any():
                raise DataError(
                    f"{self.split} row {first + int(is_wrong.argmax()):,} has a token outside the vocabulary of "
                    f"{num_tokens:,}, or lacks a special token at its beginning or end; {REMEDY}"
                )
            first += len(ends)

    @property
    def num_documents_with_pairs(self) -> int:
        """Number of documents of which a row, made for pairs, has several sentences."""
        table = cast(pa.Table, self.table.data)
        chunks = zip(*(table.column(name).chunks for name in ("sentence_starts", "document_hashes")), strict=True)
        hashes = [own.flatten().to_numpy()[starts.value_lengths().to_numpy() > 1] for starts, own in chunks]
        return len(np.unique(np.concatenate(hashes)))

    @property
    def sha256(self) -> str:
        """What identifies the rows of both splits: the manifest's hash over all shards."""
        return self.manifest.sha256

    @property
    def rows_per_source(self) -> dict[str, int]:
        """The number of rows of each source, in row order; empty if there is only one source, or if rows mix them."""
        sizes = self.manifest.sources(self.split) if len(self.manifest.plan.sources) > 1 else {}
        return {name: num_rows for name, (num_rows, _) in sizes.items()}

    @property
    def mean_fill(self) -> float:
        """Mean share of `row_length` that the rows of this split fill."""
        return self.manifest.report.of(self.split).fill_rate


def open_rows(folder: Path, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split; `verified` compares each of its shards with its SHA-256 first.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows, or not those
    that its manifest describes.
    """
    manifest = read_rows_manifest(folder)
    if verified:
        verify(folder, f"{split}/")
    shards, plan = shards_of(manifest, split, folder), manifest.plan
    check_shards(shards, shard_schema(1, plan.pairs, plan.words is not None), manifest, split)
    table = cast(Dataset, concatenate_datasets([Dataset.from_file(str(shard)) for shard in shards]))
    columns = [name for name in COLUMNS if name in table.column_names]
    return Rows(cast(Dataset, table.select_columns(columns).with_format("arrow")), manifest, split)


def pin_rows(name: str, earlier: str | None = None) -> str:
    """Returns hf:OWNER/NAME@COMMIT for rows on the hub, and the name of a folder as it is.

    The commit is that of `earlier` if it pins the same rows and the name has no commit itself, otherwise the one that
    the revision means now. Raises DataError if there is none.
    """
    rows = rows_on_hub(name)
    if rows is None:
        return name
    pinned = f"hf:{rows.name}@{{}}"
    if earlier and earlier.startswith(pinned.format("")) and not rows.is_pinned:
        return earlier
    return pinned.format(commit_of(rows.name, rows.revision))


def folder_of_rows(pinned: str, splits: Sequence[Split] = SPLITS) -> Path:
    """Returns the folder of the rows; of pinned rows on the hub, the missing files of these splits are downloaded.

    Raises DataError if that fails.
    """
    if (rows := rows_on_hub(pinned)) is None:
        return Path(pinned)
    return download(rows.name, str(rows.revision), [RowsManifest.FILE, *(f"{split}/*" for split in splits)])


def open_named_rows(name: str, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split as open_rows does, from a folder or, pinned, from the hub."""
    try:
        return open_rows(folder_of_rows(name, [split]), split, verified)
    except FolderError as error:
        if rows_on_hub(name) is None:
            raise
        raise FolderError(f"{name}: {error}; to download that file again, remove it and what it links to") from None


def token_bytes(vocabulary_size: int) -> int:
    """Returns the bytes per token in packed rows."""
    return 2 if vocabulary_size <= 1 << 16 else 4
