"""The slices of a corpus: packed by whichever process is given their numbers, then sealed together as one folder."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import UInt64

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, Contents, Families, PackingReport, RowsManifest, RowsPlan, Split
from longmlm.artifacts.unfinished_rows import SliceReport
from longmlm.data.corpus import Document, SetAside, Slice, read_slice, side_of, text_hash
from longmlm.data.counts import Counts
from longmlm.data.encoding import tokenized
from longmlm.data.fast_encoding import MakeEncoder
from longmlm.data.files import SET_ASIDE
from longmlm.data.packing import OpenRow, TokenizedDocument, pack_document
from longmlm.data.row import Row, WordTable
from longmlm.data.rows import Shard, open_shard, shard_schema
from longmlm.data.vocabulary import Vocabulary
from longmlm.data.words import Segmenter, word_table
from longmlm.errors import ArtifactError, DataError, counted
from longmlm.folders import seal, sync
from longmlm.settings.prepare import PrepareRecipe
from longmlm.temporary import replaced_file

CONTENT = "content"  # the folder that becomes the output
SURVEYS, COPIES = "surveys", "copies.parquet"
UNFINISHED = "unfinished"  # files on their way: outside the content, where a killed process would leave them


@dataclass(frozen=True, slots=True)
class SliceJob:
    """All that packing any slice of a corpus needs; a worker gets it once, and the spans with each slice.

    `folder` receives, for each slice, its part of `content/`, a report and the hashes of its documents. `make_encoder`
    makes a fast encoder, if one is used; `segmenter` finds words, if rows record where they start.
    """

    recipe: PrepareRecipe
    vocabulary: Vocabulary
    slices: Mapping[int, Slice]
    folder: Path
    make_encoder: MakeEncoder | None = None
    segmenter: Segmenter | None = None

    def report_path(self, number: int) -> Path:
        """Returns the path of a slice's report, which exists when the slice is finished."""
        return self.folder / "reports" / f"slice-{number:05d}.json"

    def shard_path(self, split: Split, number: int) -> Path:
        """Returns the path of a slice's shard; a split without rows has none."""
        return self.folder / CONTENT / split / f"slice-{number:05d}.arrow"

    def hashes_path(self, number: int) -> Path:
        """Returns the path of the hashes of a slice's documents."""
        return self.report_path(number).with_suffix(".hashes")

    def survey_path(self, number: int) -> Path:
        """Returns the path of the hashes by which copies are found among the documents of a slice."""
        return self.folder / SURVEYS / f"slice-{number:05d}.parquet"

    def hashes(self, number: int) -> UInt64[np.ndarray, " documents"]:
        """Returns the hashes of a finished slice's documents, those that train first."""
        return np.frombuffer(self.hashes_path(number).read_bytes(), dtype=np.uint64)

    def open_row(self, words: WordTable | None) -> OpenRow:
        """Returns an empty row to fill; with a table of words, it knows where they start."""
        recipe, vocabulary = self.recipe, self.vocabulary
        return OpenRow(
            recipe.row_capacity,
            vocabulary.special,
            vocabulary.is_within_character,
            has_pairs=recipe.pairs,
            short_row_share=recipe.short_row_share,
            words=words,
        )

    @property
    def unfinished_folder(self) -> Path:
        """The folder of files that are being written."""
        return self.folder / UNFINISHED

    def write(self, path: Path, content: bytes) -> None:
        """Writes a file of a slice, as other processes may at the same time."""
        with replaced_file(path, self.unfinished_folder) as partial:
            partial.write_bytes(content)
            sync(partial)

    def unfinished(self) -> list[int]:
        """Returns the numbers of the slices that are still to be packed."""
        return [number for number in range(len(self.slices)) if not self.is_finished(number)]

    def is_finished(self, number: int) -> bool:
        """Returns whether a slice was packed and its files are there and undamaged.

        Without a fast encoder, a slice that was made with one has to be packed again.
        """
        try:
            report = artifact.read(SliceReport, self.report_path(number))
            num_hashes = len(self.hashes(number))
        except (ArtifactError, FileNotFoundError, ValueError):
            return False
        if report.is_fast and not self.make_encoder:
            return False
        contents = report.contents
        has_shards = all(self.shard_path(split, number).is_file() for split in SPLITS if contents.of(split).rows)
        return has_shards and num_hashes == sum(contents.of(split).documents for split in SPLITS)


def rows_of_documents(
    job: SliceJob, documents: Iterable[Document], counts: Mapping[Split, Counts]
) -> Iterator[tuple[Split, int | None, Iterator[Row]]]:
    """Yields, for each document of a slice, its split, the hash of its text and the rows that it completes.

    At the end, it yields the last row of each split. The rows must be consumed in between; they are counted then.
    """
    recipe, vocabulary = job.recipe, job.vocabulary
    languages, words = [source.language for source in recipe.sources], word_table(vocabulary) if job.segmenter else None
    open_rows: dict[Split, OpenRow] = {}
    for document, sentences in tokenized(vocabulary, languages, documents, job.make_encoder, job.segmenter):
        text_key = text_hash(document.text)
        split = side_of(document, text_key, recipe)
        row = open_rows.setdefault(split, job.open_row(words))
        counted = counts[split].count_sentences(sentences, document.source, recipe.row_capacity)
        packed = pack_document(row, TokenizedDocument(counted, document.source, text_key), recipe.packing)
        yield split, text_key, counts[split].count_rows(packed)
    for split, row in open_rows.items():
        yield split, None, counts[split].count_rows([row.close()] if row.length else [])


Work = Callable[[SliceJob, int], None]


def pack_slice(job: SliceJob, number: int) -> None:
    """Writes the shards, rejected records, hashes and report of a slice; a finished slice is left as it is.

    The report is written last, so that a slice with a report is complete.
    """
    if job.is_finished(number):
        return
    recipe, vocabulary = job.recipe, job.vocabulary
    counts = {split: Counts(recipe.row_length, len(recipe.sources), vocabulary.special.unk) for split in SPLITS}
    opened: dict[Split, Shard] = {}  # a split without documents gets no shard
    hashes: dict[Split, list[int]] = {split: [] for split in SPLITS}
    set_aside: Counter[str] = Counter()
    schema = shard_schema(vocabulary.size, recipe.pairs, job.segmenter is not None)
    with ExitStack() as shards:
        for split, text_key, rows in rows_of_documents(job, _documents(job, number, set_aside), counts):
            if text_key is not None:
                hashes[split].append(text_key)
            if split not in opened:
                shard = open_shard(job.shard_path(split, number), schema, job.unfinished_folder)
                opened[split] = shards.enter_context(shard)
            opened[split].write(rows)
    job.write(job.hashes_path(number), np.array([*hashes["train"], *hashes["held_out"]], dtype=np.uint64).tobytes())
    train, held_out = (counts[split].report() for split in SPLITS)
    contents = Contents(train=train, held_out=held_out, set_aside=dict(set_aside))
    report = SliceReport(contents=contents, is_fast=job.make_encoder is not None)
    job.write(job.report_path(number), json.dumps(artifact.dump(report)).encode())


def _documents(job: SliceJob, number: int, reasons: Counter[str]) -> Iterator[Document]:
    """Yields the documents to pack; the other records of a slice are written to a file and counted by reason."""
    path = job.folder / CONTENT / SET_ASIDE / f"slice-{number:05d}.jsonl"
    with replaced_file(path, job.unfinished_folder) as partial, partial.open("w", encoding="utf-8") as file:
        for record in _records(job, number):
            if isinstance(record, SetAside):
                reasons[record.reason] += 1
                file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
            else:
                yield record


def _records(job: SliceJob, number: int) -> Iterator[Document | SetAside]:
    """Yields the records of a slice, with the decisions of `data.duplicates` about copies applied."""
    decisions, numbers = {}, count()
    if job.recipe.sought != "keep":
        rows = pq.read_table(job.folder / COPIES, filters=[("slice", "==", number)]).to_pylist()
        decisions = {row["document"]: row for row in rows}
    for record in read_slice(job.slices[number], job.recipe.sources):
        if not isinstance(record, Document) or (decided := decisions.get(next(numbers))) is None:
            yield record
        elif decided["reason"]:
            yield SetAside(record.origin, decided["reason"], record.source, decided["first"])
        else:
            yield replace(record, family=decided["family"])


def seal_slices(
    job: SliceJob,
    plan: RowsPlan,
    output: Path,
    packed: Sequence[int],
    elapsed_seconds: float,
    families: Families | None,
) -> None:
    """Turns the finished slices into the folder `output`, whose manifest is written last.

    `packed` are the slices that the last run packed in `elapsed_seconds`, `families` the copies that it found. Raises
    DataError when a split has no rows.
    """
    slices = [artifact.read(SliceReport, job.report_path(number)).contents for number in range(len(job.slices))]
    copies = _count_copies(job, slices)
    counts = {split: Counts(plan.row_length, len(plan.sources)) for split in SPLITS}
    set_aside: Counter[str] = Counter()
    for report in slices:
        set_aside.update(report.set_aside)
        for split in SPLITS:
            counts[split].add(report.of(split))
    for split, totals in ((split, counts[split].totals) for split in SPLITS):
        if not totals["rows"]:
            raise DataError(
                f"none of {counted(totals['documents'], 'document')} of the {split} split has a token with "
                f"{plan.tokenizer}: check that the tokenizer is for the text's language"
            )
    num_tokens = sum(slices[number].of(split).tokens for number in packed for split in SPLITS)
    train, held_out = (counts[split].report(copies[split]) for split in SPLITS)
    report = PackingReport(
        train=train,
        held_out=held_out,
        set_aside=dict(sorted(set_aside.items())),
        elapsed_seconds=elapsed_seconds,
        tokens_per_second=num_tokens / max(elapsed_seconds, 1e-9),
        duplicates=families,
    )
    seal(job.folder / CONTENT, output, artifact.dump(RowsManifest(plan=plan, report=report, files={})))


def _count_copies(job: SliceJob, slices: Sequence[Contents]) -> dict[Split, int]:
    """Returns how many documents of each split have the text of an earlier document there, by their hashes."""
    parts = [np.split(job.hashes(number), [report.train.documents]) for number, report in enumerate(slices)]
    return {
        split: len(hashes) - len(np.unique(hashes))
        for split, hashes in zip(SPLITS, map(np.concatenate, zip(*parts, strict=True)), strict=True)
    }
