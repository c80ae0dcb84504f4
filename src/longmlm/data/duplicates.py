"""Copies of documents: a survey of each slice hashes its documents, and one process joins copies into families.

Documents that share a hash are a family, and so are those that others connect. With two hashes each,

    document      0  1  2  3  4
    first hash    a  b  c  b  d
    second hash   e  f  g  h  f

documents 1, 3 and 4 are a family: 3 by the first hash, 4 by the second. The first of a family in corpus order stays.
Copies that stay as well all land in the same split, with their groups.
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Int64, UInt64
from pyarrow.dataset import dataset

from longmlm.artifacts.rows import Families, Family
from longmlm.data.corpus import NUM_HASHES, Document, one_sided_message, read_slice, side_key, text_hash
from longmlm.data.encoding import batches
from longmlm.data.signatures import NUM_BANDS, band_hashes
from longmlm.data.slices import COPIES, SliceJob
from longmlm.errors import DataError, counted
from longmlm.settings.prepare import PrepareRecipe

BANDS = [f"band {number}" for number in range(NUM_BANDS)]
EXACT, NEAR = "duplicate", "near duplicate"  # reasons
NUM_CHARACTERS, NUM_LARGEST = 80, 10  # shown: characters of a text, and families

Numbers = Int64[np.ndarray, " documents"]
Hashes = UInt64[np.ndarray, " documents"]


def survey_slice(job: SliceJob, number: int) -> None:
    """Writes, for each document of a slice, its hashes, what would decide its split, its origin and first words."""
    names = ["hash", "side", *(BANDS if job.recipe.sought == "near" else [])]
    others = {"is_held_out": pa.bool_(), "origin": pa.string(), "words": pa.string()}
    schema = pa.schema(dict.fromkeys(names, pa.uint64()) | others)
    tables, records = [schema.empty_table()], read_slice(job.slices[number], job.recipe.sources)
    for batch in batches(record for record in records if isinstance(record, Document)):
        texts = [document.text for document in batch]
        hashes = np.array([text_hash(text) for text in texts], dtype=np.uint64)
        sides = np.array([*map(side_key, batch, hashes.tolist())], dtype=np.uint64)
        is_held_out = [job.recipe.sources[document.source].held_out for document in batch]
        bands = band_hashes(texts, hashes).T if job.recipe.sought == "near" else ()
        words = [" ".join(text[: 2 * NUM_CHARACTERS].split())[:NUM_CHARACTERS] for text in texts]
        origins = [document.origin for document in batch]
        tables.append(pa.table([hashes, sides, *bands, is_held_out, origins, words], schema=schema))
    table = pa.concat_tables(tables)
    table = table.append_column("slice", pa.repeat(number, len(table)))
    _write(job, table.append_column("document", pa.array(np.arange(len(table)))), job.survey_path(number))


def find_families(job: SliceJob) -> Families:
    """Returns the families of copies in the surveyed slices, and writes down what packing does with each copy.

    Takes about 120 bytes of memory per document. Raises DataError when a split would have no documents.
    """
    recipe = job.recipe
    survey = dataset([str(job.survey_path(number)) for number in range(len(job.slices))], format="parquet")

    def column(name: str) -> Any:  # an array of hashes, or of flags
        return survey.to_table(columns=[name])[name].to_numpy()

    hashes, sides, is_held_out = column("hash"), column("side"), column("is_held_out")
    own, exact = np.arange(len(hashes)), first_copies([hashes])
    first = first_copies(map(column, BANDS)) if recipe.sought == "near" else exact
    kept = {"keep": own, "exact": exact, "near": first}[recipe.duplicates]  # the copy of each document that is packed
    end, family = np.uint64(np.ceil(recipe.held_out_fraction * NUM_HASHES)), _sides(first, kept, sides, is_held_out)
    is_leak = (is_held_out | (sides < end)) != (family < end)
    _check_sides(recipe, family[kept == own])
    copies = np.flatnonzero((kept != own) | is_leak)
    unique, indices = np.unique(kept[copies], return_inverse=True)
    reasons = np.where(hashes[copies] == hashes[kept[copies]], EXACT, NEAR)
    table = survey.take(copies, columns=["slice", "document"])
    table = table.append_column("family", pa.array(family[copies]))
    table = table.append_column("reason", pa.array(reasons, pa.string(), mask=kept[copies] == copies))
    table = table.append_column("first", survey.take(unique, columns=["origin"])["origin"].take(indices))
    _write(job, table, job.folder / COPIES)
    sizes = np.bincount(first)
    largest = [number for number in np.argsort(-sizes, kind="stable")[:NUM_LARGEST] if sizes[number] > 1]
    rows = survey.take(largest, columns=["words", "origin"]).to_pylist()
    shown = (
        Family(size=int(sizes[number]), words=row["words"], origin=Path(row["origin"]).name)
        for number, row in zip(largest, rows, strict=True)
    )
    return Families(count=int((sizes > 1).sum()), leaks=int(is_leak.sum()), largest=tuple(shown))


def _sides(first: Numbers, kept: Numbers, sides: Hashes, is_held_out: Bool[np.ndarray, " documents"]) -> Hashes:
    """Returns the hash that decides the split of each document: a common one for copies that stay and their groups.

    If one of these documents is in a source that is held out as a whole, all of them are held out: their hash is 0.
    """
    staying = np.flatnonzero(kept == np.arange(len(kept)))
    joined = kept.copy()
    joined[staying] = staying[first_copies([first[staying].astype(np.uint64), sides[staying]])]
    joined = joined[kept]
    held_out = np.zeros(len(kept), dtype=bool)
    np.logical_or.at(held_out, joined[staying], is_held_out[staying])
    return np.where(held_out[joined], np.uint64(0), sides[joined])


def first_copies(keys: Iterable[Hashes]) -> Numbers:
    """Returns the first document of each document's family; copies share a hash in at least one of the keys.

    Takes the memory of five numbers per document.
    """
    first = np.zeros(0, dtype=np.int64)
    for key in keys:
        first = first if len(first) else np.arange(len(key))
        order = np.argsort(key, kind="stable")
        is_same = np.diff(key[order]) == 0
        left, right = first[order[:-1][is_same]], first[order[1:][is_same]]
        while len(left):
            np.minimum.at(first, np.maximum(left, right), np.minimum(left, right))
            while not np.array_equal(first, above := first[first]):
                first = above
            left, right = first[left], first[right]
            left, right = left[left != right], right[left != right]
    return first


def _check_sides(recipe: PrepareRecipe, hashes: Hashes) -> None:
    """Raises DataError if all documents that stay land in the same split, which these hashes decide."""
    copies, keep = ("", "") if recipe.duplicates == "keep" else (" without copies", ', or duplicates to "keep"')
    left = f"the corpus has {counted(len(hashes), 'document')}{copies}"
    lowest, highest, fraction = int(hashes.min()), int(hashes.max()), recipe.held_out_fraction
    if lowest == highest:
        joined = ", and copies or groups put all of them in the same split" if len(hashes) > 1 else ""
        raise DataError(f"{left}{joined}: training and held-out rows need two or more; add documents")
    if not lowest < fraction * NUM_HASHES <= highest:
        raise DataError(f"{left}, and {one_sided_message('them', fraction, lowest, highest)}{keep}")


def _write(job: SliceJob, table: pa.Table, path: Path) -> None:
    content = io.BytesIO()
    pq.write_table(table, content)
    job.write(path, content.getvalue())
