"""Packed rows to Arrow shards under a manifest, and back, memory-mapped."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from jaxtyping import Int64

from longmlm.data.packing import PackedRow
from longmlm.errors import DataError
from longmlm.folders import PARTIAL, read_manifest, verify

FORMAT = 1
ROWS_PER_RECORD_BATCH = 512

Split = Literal["train", "held_out"]


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
    def mean_fill(self) -> float:
        """Mean share of `row_length` that the rows of this split fill."""
        return self.manifest["report"][self.split]["fill_rate"]


def open_rows(folder: Path, split: Split, verified: bool = True) -> Rows:
    """Returns the rows of one split; `verified` compares every shard with its SHA-256 first.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows.
    """
    manifest = verify(folder) if verified else read_manifest(folder)
    if manifest.get("kind") != "rows" or manifest.get("format") != FORMAT:
        raise DataError(f"{folder} holds no packed rows of format {FORMAT}: make them with pipelines.prepare")
    shards = sorted(folder / name for name in manifest["files"] if name.startswith(f"{split}/"))
    if not shards:
        raise DataError(f"{folder} holds no {split} rows")
    table = cast(Dataset, concatenate_datasets([Dataset.from_file(str(shard)) for shard in shards]))
    ids = cast(Dataset, table.select_columns(["input_ids"]).with_format("numpy"))
    return Rows(ids, manifest, split)


def write_shard(path: Path, rows: Iterable[PackedRow], vocabulary_size: int) -> int:
    """Writes rows as an Arrow stream that `datasets` memory-maps, ids in the smallest fitting type; returns how many.

    The file appears under its name when it is complete.
    """
    id_type = pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()
    schema = pa.schema(
        {
            "input_ids": pa.list_(id_type),
            "document_starts": pa.list_(pa.int32()),
            "document_sources": pa.list_(pa.uint16()),
        }
    )
    aside = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
    num_rows = 0
    with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in _batches(rows):
            columns = {name: [getattr(row, name) for row in batch] for name in schema.names}
            writer.write_batch(pa.record_batch(columns, schema=schema))
            num_rows += len(batch)
    aside.replace(path)
    return num_rows


def _batches(rows: Iterable[PackedRow]) -> Iterator[list[PackedRow]]:
    batch: list[PackedRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) == ROWS_PER_RECORD_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
