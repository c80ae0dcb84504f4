"""Packed rows on disk: Arrow shards below a manifest, written row by row and read memory-mapped."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import RowsManifest, Split
from longmlm.data.row import Row
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.folders import PARTIAL, read_manifest, sync, verify

ROWS_PER_RECORD_BATCH = 512
COLUMNS = [column.name for column in fields(Row)]


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
        return Row(**{name: record.column(name).to_numpy()[0].astype(np.int64) for name in COLUMNS})

    @property
    def row_length(self) -> int:
        """Tokens of a full row; the last row of a slice may have fewer."""
        return self.manifest.plan.row_length

    @property
    def sha256(self) -> str:
        """What identifies the rows of both splits: the manifest's hash over all shards."""
        return self.manifest.sha256

    @property
    def mean_fill(self) -> float:
        """Mean share of `row_length` that the rows of this split fill."""
        return self.manifest.report.of(self.split).fill_rate

    def is_made_by(self, vocabulary: Vocabulary) -> bool:
        """Returns whether these rows were made with this tokenizer, as far as their format records it."""
        plan = self.manifest.plan
        if plan.tokenizer_fingerprint is None:
            return plan.vocabulary_sha256 == vocabulary.vocabulary_sha256
        return plan.tokenizer_fingerprint == vocabulary.fingerprint


def read_rows_manifest(folder: Path) -> RowsManifest:
    """Returns the manifest of a folder of rows.

    Raises FolderError for an incomplete folder, DataError for one that holds something else, ArtifactError for a
    manifest that is damaged or of a newer format.
    """
    if read_manifest(folder).get("kind") != "rows":
        raise DataError(f"{folder} holds no packed rows: make them with longmlm prepare")
    return artifact.read(RowsManifest, folder / RowsManifest.FILE)


def open_rows(folder: Path, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split; `verified` compares each of its shards with its SHA-256 first.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows.
    """
    manifest = read_rows_manifest(folder)
    if verified:
        verify(folder, f"{split}/")
    shards = sorted(folder / name for name in manifest.files if name.startswith(f"{split}/"))
    if not shards:
        raise DataError(f"{folder} holds no {split} rows")
    table = cast(Dataset, concatenate_datasets([Dataset.from_file(str(shard)) for shard in shards]))
    return Rows(cast(Dataset, table.select_columns(COLUMNS).with_format("arrow")), manifest, split)


def shard_schema(vocabulary_size: int) -> pa.Schema:
    """Returns the columns of a shard, token ids in the smallest type that holds the vocabulary."""
    id_type = pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()
    return pa.schema(
        {
            "input_ids": pa.list_(id_type),
            "document_starts": pa.list_(pa.int32()),
            "document_sources": pa.list_(pa.uint16()),
        }
    )


def write_shard(path: Path, rows: Iterable[Row], vocabulary_size: int) -> int:
    """Writes rows as an Arrow stream that `datasets` memory-maps, and returns their number.

    The file appears under its name when it is complete.
    """
    with open_shard(path, vocabulary_size) as shard:
        for row in rows:
            shard.add(row)
    return shard.num_rows


class Shard:
    """An Arrow stream of rows that is being written, one record batch at a time."""

    def __init__(self, writer: pa.ipc.RecordBatchStreamWriter, schema: pa.Schema) -> None:
        self.writer, self.schema = writer, schema
        self.num_rows, self._waiting = 0, []

    def add(self, row: Row) -> None:
        """Appends a row."""
        self._waiting.append(row)
        self.num_rows += 1
        if len(self._waiting) == ROWS_PER_RECORD_BATCH:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait for their record batch to fill up."""
        if self._waiting:
            columns = {name: [getattr(row, name) for row in self._waiting] for name in self.schema.names}
            self.writer.write_batch(pa.record_batch(columns, schema=self.schema))
            self._waiting = []


@contextmanager
def open_shard(path: Path, vocabulary_size: int) -> Iterator[Shard]:
    """Yields the shard to write rows into; its file appears under its name when the block succeeds."""
    schema = shard_schema(vocabulary_size)
    partial = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
    try:
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            shard = Shard(writer, schema)
            yield shard
            shard.flush()
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
