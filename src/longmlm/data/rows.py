"""Packed rows to Arrow shards under a manifest, and back, memory-mapped."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from jaxtyping import Int64

from longmlm.data.packing import Row
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.folders import PARTIAL, read_manifest, sync, verify

FORMAT = 2
VOCABULARY_ONLY = 1  # the format of earlier rows, whose plan tells the vocabulary's hash instead of the tokenizer's
FORMATS = (VOCABULARY_ONLY, FORMAT)
ROWS_PER_RECORD_BATCH = 512

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of one split, read from memory-mapped shards as they are asked for."""

    table: Dataset
    manifest: dict[str, Any]
    split: Split

    def __len__(self) -> int:
        return len(self.table)

    def tokens(self, row_id: int) -> Int64[np.ndarray, " tokens"]:
        """Returns a row's tokens, special ones included."""
        return self.table[int(row_id)]["input_ids"]

    @property
    def row_length(self) -> int:
        """Tokens that a full row has; the last row of a slice may have fewer."""
        return self.manifest["row_length"]

    @property
    def sha256(self) -> str:
        """SHA-256 of the SHA-256 of every shard, of both splits: the same for the same rows."""
        shards = sorted((name, about["sha256"]) for name, about in self.manifest["files"].items() if _is_shard(name))
        return hashlib.sha256(repr(shards).encode()).hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """The plan that the rows follow from, and their `sha256`: all that a run on them depends on."""
        return {**self.manifest["plan"], "sha256": self.sha256}

    def is_made_by(self, vocabulary: Vocabulary) -> bool:
        """Tells whether the tokenizer of these rows was that of `vocabulary`, as far as their format records it."""
        is_earlier = self.manifest["format"] == VOCABULARY_ONLY
        expected = vocabulary.vocabulary_sha256 if is_earlier else vocabulary.fingerprint
        return self.manifest["plan"]["tokenizer_fingerprint"] == expected

    @property
    def mean_fill(self) -> float:
        """Mean share of `row_length` that the rows of this split fill."""
        return self.manifest["report"][self.split]["fill_rate"]


def open_rows(folder: Path, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split; `verified` compares each of its shards with its SHA-256 first.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows.
    """
    manifest = verify(folder, f"{split}/") if verified else read_manifest(folder)
    if manifest.get("kind") != "rows" or manifest.get("format") not in FORMATS:
        raise DataError(
            f"{folder} holds no packed rows of format {VOCABULARY_ONLY} or {FORMAT}: make them with pipelines.prepare"
        )
    shards = sorted(folder / name for name in manifest["files"] if name.startswith(f"{split}/"))
    if not shards:
        raise DataError(f"{folder} holds no {split} rows")
    table = cast(Dataset, concatenate_datasets([Dataset.from_file(str(shard)) for shard in shards]))
    ids = cast(Dataset, table.select_columns(["input_ids"]).with_format("numpy"))
    return Rows(ids, manifest, split)


def _is_shard(name: str) -> bool:
    return name.startswith(tuple(f"{split}/" for split in SPLITS))


def write_shard(path: Path, rows: Iterable[Row], vocabulary_size: int) -> int:
    """Writes rows as an Arrow stream that `datasets` memory-maps, ids in the smallest fitting type; returns how many.

    The file appears under its name when it is complete.
    """
    with open_shard(path, vocabulary_size) as shard:
        for row in rows:
            shard.add(row)
    return shard.num_rows


class Shard:
    """An Arrow stream of rows that is being written, a record batch at a time."""

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
        """Writes the rows that wait for a record batch to be full."""
        if self._waiting:
            columns = {name: [getattr(row, name) for row in self._waiting] for name in self.schema.names}
            self.writer.write_batch(pa.record_batch(columns, schema=self.schema))
            self._waiting = []


@contextmanager
def open_shard(path: Path, vocabulary_size: int) -> Iterator[Shard]:
    """Yields the shard to write rows into; its file appears under its name when the block ends well."""
    id_type = pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()
    schema = pa.schema(
        {
            "input_ids": pa.list_(id_type),
            "document_starts": pa.list_(pa.int32()),
            "document_sources": pa.list_(pa.uint16()),
        }
    )
    aside = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
    try:
        with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            shard = Shard(writer, schema)
            yield shard
            shard.flush()
        sync(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
