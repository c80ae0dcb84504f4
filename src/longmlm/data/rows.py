"""Packed rows: one row, the Arrow shards that hold them, and the rows of a folder or of the hub, memory-mapped."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from jaxtyping import Int64

from longmlm.artifacts.rows import NUM_FILLS, SPLITS, RowsManifest, RowsPlan, Split, read_rows_manifest, shards_of
from longmlm.data.row import Row, SpecialTokens
from longmlm.errors import DataError, FolderError
from longmlm.folders import sync, verify
from longmlm.hubs.datasets import commit_of, download, rows_on_hub
from longmlm.temporary import replaced_file

ROWS_PER_RECORD_BATCH = 512
COLUMNS = [column.name for column in fields(Row)]
UNMIXED_VERSION = 3  # of the recipe: since then, no row mixes sources
MIN_TOKENS = 3  # [CLS], a token of text, [SEP]
REMEDY = "longmlm prepare does not write such rows: prepare them again"
# for each column: the length of each list, the values of all lists, and whether each list is or contains null
Lists = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


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
                    f"{num_tokens:,}, or does not begin and end with a special token; {REMEDY}"
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
    """Returns the rows of one split; `verified` compares its shards with their SHA-256 and with the manifest first.

    Raises FolderError for a folder that is incomplete or damaged, DataError for one that holds no rows, or not those
    that its manifest describes.
    """
    manifest = read_rows_manifest(folder)
    shards, plan = shards_of(manifest, split, folder), manifest.plan
    if verified:
        verify(folder, f"{split}/")
        check_shards(shards, shard_schema(1, plan.pairs, plan.words is not None), manifest, split)
    table = cast(Dataset, concatenate_datasets([Dataset.from_file(str(shard)) for shard in shards]))
    columns = [name for name in COLUMNS if name in table.column_names]
    return Rows(cast(Dataset, table.select_columns(columns).with_format("arrow")), manifest, split)


def check_shards(shards: Sequence[Path], schema: pa.Schema, manifest: RowsManifest, split: Split) -> None:
    """Raises DataError for a row that longmlm prepare does not write, and for rows that the manifest miscounts.

    The number of a row is that in its shard.
    """
    plan, report = manifest.plan, manifest.report.of(split)
    tokens, documents, sources = np.concatenate([_row_counts(shard, schema, plan) for shard in shards], axis=1)
    text = tokens - documents - 1
    found = {
        "rows": len(tokens),
        "tokens": int(text.sum()),
        "separators": int((documents - 1).sum()),
        "fill_rate": float(tokens.sum() / max(1, len(tokens) * plan.row_length)),
        "fills": tuple(np.bincount((NUM_FILLS * tokens - 1) // plan.row_length, minlength=NUM_FILLS).tolist()),
    }
    if report.rows_per_source or plan.recipe_version >= UNMIXED_VERSION:
        numbers = len(plan.sources)
        found["rows_per_source"] = tuple(np.bincount(sources, minlength=numbers).tolist())
        found["tokens_per_source"] = tuple(np.bincount(sources, text, numbers).astype(int).tolist())
    problems = [
        f"{name} is {getattr(report, name)}, but its shards have {own}"
        for name, own in found.items()
        if getattr(report, name) != own
    ]
    least = sum(count << power for power, count in enumerate(report.document_lengths))
    if not least <= report.tokens < max(1, 2 * least) or sum(report.document_lengths) > report.documents:
        problems.append("documents and document_lengths do not fit its tokens")
    if (np.diff(sources) < 0).any():
        problems.append("rows_per_source is wrong, since the rows of the sources do not follow each other")
    if problems:
        raise DataError(f"{shards[0].parents[1] / manifest.FILE}: {split}.{problems[0]}; {REMEDY}")


def _row_counts(shard: Path, schema: pa.Schema, plan: RowsPlan) -> Int64[np.ndarray, "3 rows"]:
    """Returns each row's number of tokens, number of documents and first source; reads the whole shard."""
    parts, first = [np.zeros((3, 0), np.int64)], 0
    try:
        for batch in pa.ipc.open_stream(pa.memory_map(str(shard))):
            batch.validate(full=True)
            lists = {item.name: _lists(batch, item) for item in schema}
            for is_wrong, problem in _problems(lists, plan):
                if is_wrong.any():
                    raise ValueError(f"row {first + int(is_wrong.argmax()):,} {problem}")
            documents, sources, _ = lists["document_sources"]
            parts.append(np.stack([lists["input_ids"][0], documents, sources[np.cumsum(documents) - documents]]))
            first += len(batch)
    except ValueError as error:  # also of Arrow
        raise DataError(f"{shard}: {error}; {REMEDY}") from None
    return np.concatenate(parts, axis=1).astype(np.int64)


def _lists(batch: pa.RecordBatch, item: pa.Field) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a column as one of Lists; raises ValueError if it is missing or has other values."""
    column = batch.column(item.name) if batch.schema.names.count(item.name) == 1 else None
    kinds = (pa.uint16(), pa.uint32()) if item.name == "input_ids" else (item.type.value_type,)
    if not isinstance(column, pa.ListArray) or column.type.value_type not in kinds:
        raise ValueError(f"it has no column {item.name} of lists of {' or '.join(map(str, kinds))}")
    ends = column.offsets.to_numpy()
    values = column.values[ends[0] : ends[-1]]
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    if values.null_count:
        null_indices = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        is_null[np.searchsorted(ends, ends[0] + null_indices, side="right") - 1] = True
    return np.diff(ends), values.to_numpy(zero_copy_only=False), is_null


def _problems(lists: Lists, plan: RowsPlan) -> Iterator[tuple[np.ndarray, str]]:
    """Yields which rows have a problem, and the problem."""
    for name, (_, _, is_null) in lists.items():
        yield is_null, f"has null in {name}"
    lengths = {name: own for name, (own, *_) in lists.items()}
    tokens, documents = lengths["input_ids"], lengths["document_starts"]
    yield (tokens < MIN_TOKENS) | (tokens > plan.row_length), f"does not have {MIN_TOKENS} to {plan.row_length} tokens"
    for name, own in lengths.items():
        of = "document_starts" if name.startswith("document") else "input_ids"
        if name != "sentence_starts":
            yield own != lengths[of], f"does not have as many {name} as {of}"
    for name in (name for name in lengths if name.endswith("starts")):
        own, starts, _ = lists[name]
        rows = np.repeat(np.arange(len(own)), own)
        is_wrong, is_first = own == 0, np.diff(rows, prepend=-1) > 0
        is_wrong[rows[np.where(is_first, starts != 1, np.diff(starts, prepend=0) <= 0)]] = True
        is_wrong[rows[starts >= tokens[rows] - 1]] = True
        yield is_wrong, f"has {name} that do not increase from 1, or lie beyond its last token of text"
    sources, rows = lists["document_sources"][1], np.repeat(np.arange(len(tokens)), documents)
    has_unknown = np.isin(np.arange(len(tokens)), rows[sources >= len(plan.sources)])
    yield has_unknown, f"is of a source beyond the {len(plan.sources)} of the manifest"
    if plan.packing != "full-sentences":
        yield documents > 1, f"has several documents, which packing = {plan.packing} does not give"


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
