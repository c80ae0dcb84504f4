"""Checks of packed rows: those of another maker, or edited ones, may have hashes that agree and content that does not.

Lists of numbers are checked as Arrow stores them: one after the other, with the length of each.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from longmlm.artifacts.rows import NUM_FILLS, RowsManifest, RowsPlan, Split
from longmlm.errors import DataError

UNMIXED_VERSION = 3  # of the recipe: since then, no row mixes sources
MIN_TOKENS = 3  # [CLS], a token of text, [SEP]
REMEDY = "such rows are not from longmlm prepare: prepare them again"
# of each column: the lengths of the lists, all their values, and which lists are or have null
Lists = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def check_shards(shards: Sequence[Path], schema: pa.Schema, manifest: RowsManifest, split: Split) -> None:
    """Raises DataError for a row that longmlm prepare does not write, and for rows that the manifest miscounts.

    The number of a row is that in its shard.
    """
    plan, report = manifest.plan, manifest.report.of(split)
    tokens, documents, sources = np.concatenate([_facts(shard, schema, plan) for shard in shards], axis=1)
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


def _facts(shard: Path, schema: pa.Schema, plan: RowsPlan) -> Int64[np.ndarray, "3 rows"]:
    """Returns the tokens, the documents and the first source of each row of a shard, which is read for it."""
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
        places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        is_null[np.searchsorted(ends, ends[0] + places, side="right") - 1] = True
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
        yield is_wrong, f"has {name} that do not rise from 1 to its last token of text"
    sources, rows = lists["document_sources"][1], np.repeat(np.arange(len(tokens)), documents)
    has_unknown = np.isin(np.arange(len(tokens)), rows[sources >= len(plan.sources)])
    yield has_unknown, f"is of a source that is not one of {len(plan.sources)}"
    if plan.packing != "full-sentences":
        yield documents > 1, f"has several documents, which packing = {plan.packing} does not give"
