"""The slices of a corpus: packed by whichever process is given their numbers, then sealed together as one folder."""

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Encoding

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import (
    SPLITS,
    Contents,
    PackingReport,
    RowsManifest,
    RowsPlan,
    SliceReport,
    Split,
    SplitReport,
)
from longmlm.data.corpus import Document, SetAside, Slice, read_slice, split_of, text_hash
from longmlm.data.encoding import PIECE_CHARACTERS, encode, encode_batch, sentences_of
from longmlm.data.packing import OpenRow, TokenizedDocument, pack_document
from longmlm.data.row import Row, TokenizedSentence
from longmlm.data.rows import Shard, open_shard
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import ArtifactError, DataError, counted
from longmlm.folders import seal
from longmlm.processes import one_ahead
from longmlm.settings.prepare import PrepareRecipe
from longmlm.temporary import PARTIAL

CONTENT = "content"  # the folder that becomes the output
SET_ASIDE = "set_aside"
NUM_FILLS = 20
TOTALS = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")


@dataclass(frozen=True, slots=True)
class SliceJob:
    """All that packing any slice of a corpus needs; it is sent to the processes that do it.

    `folder` receives, for each slice, its part of `content/`, a report and the hashes of its documents.
    """

    recipe: PrepareRecipe
    vocabulary: Vocabulary
    slices: tuple[Slice, ...]
    folder: Path

    def report_path(self, number: int) -> Path:
        """Returns the path of a slice's report, which exists when the slice is finished."""
        return self.folder / "reports" / f"slice-{number:05d}.json"

    def shard_path(self, split: Split, number: int) -> Path:
        """Returns the path of a slice's shard; a split without rows has none."""
        return self.folder / CONTENT / split / f"slice-{number:05d}.arrow"

    def unfinished(self) -> list[int]:
        """Returns the numbers of the slices that are still to be packed, or whose files are missing or damaged."""
        return [number for number in range(len(self.slices)) if not self.is_finished(number)]

    def is_finished(self, number: int) -> bool:
        """Returns whether a slice was packed and its files are there."""
        try:
            contents = artifact.read(SliceReport, self.report_path(number)).contents
            np.load(_hashes_path(self, number))
        except (ArtifactError, FileNotFoundError, ValueError, EOFError):
            return False
        return all(self.shard_path(split, number).is_file() for split in SPLITS if contents.of(split).rows)

    def split_of(self, document_hash: int) -> Split:
        """Returns the split of the documents with this hash."""
        return split_of(document_hash, self.recipe.held_out_fraction)


@dataclass(slots=True)
class Counts:
    """The running counts of a split; the histograms are SplitReport's lists by index."""

    row_length: int
    num_sources: int
    unknown: int | None = None  # the id of [UNK]
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    rows: int = 0
    separators: int = 0
    cut_sentences: int = 0
    tokens_per_source: Counter[int] = field(default_factory=Counter)
    unknown_per_source: Counter[int] = field(default_factory=Counter)
    document_lengths: Counter[int] = field(default_factory=Counter)
    fills: Counter[int] = field(default_factory=Counter)

    def count_sentences(self, sentences: Iterable[TokenizedSentence], source: int) -> Iterator[TokenizedSentence]:
        """Yields a document's sentences, and counts them and the document."""
        length = 0
        for sentence in sentences:
            self.sentences += 1
            length += len(sentence)
            self.cut_sentences += len(sentence) > self.row_length - 2
            yield sentence
        self.documents += 1
        self.tokens += length
        self.tokens_per_source[source] += length
        if length:
            self.document_lengths[length.bit_length() - 1] += 1

    def count_rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows, and counts them."""
        for row in rows:
            self.rows += 1
            self.separators += len(row.document_starts) - 1
            self.fills[(NUM_FILLS * len(row) - 1) // self.row_length] += 1
            if self.unknown is not None:
                positions = np.flatnonzero(row.input_ids == self.unknown)
                documents = np.searchsorted(row.document_starts, positions, side="right") - 1
                self.unknown_per_source.update(row.document_sources[documents].tolist())
            yield row

    def add(self, report: SplitReport) -> None:
        """Adds the counts of a slice."""
        for name in TOTALS:
            setattr(self, name, getattr(self, name) + getattr(report, name))
        for name in ("tokens_per_source", "unknown_per_source", "document_lengths", "fills"):
            getattr(self, name).update(dict(enumerate(getattr(report, name))))

    def report(self, copies: int = 0) -> SplitReport:
        """Returns the counts so far; `copies` is only known over all slices."""
        return SplitReport(
            documents=self.documents,
            sentences=self.sentences,
            tokens=self.tokens,
            rows=self.rows,
            separators=self.separators,
            cut_sentences=self.cut_sentences,
            fill_rate=(self.tokens + self.separators + 2 * self.rows) / max(1, self.rows * self.row_length),
            copies=copies,
            tokens_per_source=_by_index(self.tokens_per_source, self.num_sources),
            unknown_per_source=_by_index(self.unknown_per_source, self.num_sources),
            document_lengths=_by_index(self.document_lengths, max(self.document_lengths, default=-1) + 1),
            fills=_by_index(self.fills, NUM_FILLS),
        )


def _by_index(histogram: Counter[int], length: int) -> tuple[int, ...]:
    return tuple(histogram[index] for index in range(length))


def pack_slice(job: SliceJob, number: int) -> None:
    """Writes the shards, rejected records, hashes and report of a slice; a finished slice is left as it is.

    The report is written last, so that a slice with a report is complete.
    """
    if job.is_finished(number):
        return
    recipe, unknown = job.recipe, job.vocabulary.special.unk
    counts = {split: Counts(recipe.row_length, len(recipe.sources), unknown) for split in SPLITS}
    open_rows: dict[Split, tuple[OpenRow, Shard]] = {}  # a split without documents gets no shard
    hashes: list[int] = []
    set_aside: Counter[str] = Counter()
    languages = [source.language for source in job.recipe.sources]
    capacity, is_within_character = job.recipe.row_length - 2, job.vocabulary.is_within_character
    with ExitStack() as shards:
        for document, sentences in tokenized(job.vocabulary, languages, _documents(job, number, set_aside)):
            hashes.append(text_hash(document.text))
            split = job.split_of(hashes[-1])
            if split not in open_rows:
                path = job.shard_path(split, number)
                opened = shards.enter_context(open_shard(path, job.vocabulary.size))
                open_rows[split] = OpenRow(capacity, job.vocabulary.special, is_within_character), opened
            row, shard = open_rows[split]
            counted = TokenizedDocument(counts[split].count_sentences(sentences, document.source), document.source)
            shard.write(counts[split].count_rows(pack_document(row, counted, job.recipe.packing)))
        for split, (row, shard) in open_rows.items():
            shard.write(counts[split].count_rows([row.close()] if row.length else []))
    content = io.BytesIO()  # written to a file, np.save does not say why it fails
    np.save(content, np.array(hashes, dtype=np.uint64))
    _hashes_path(job, number).write_bytes(content.getvalue())
    train, held_out = (counts[split].report() for split in SPLITS)
    contents = Contents(train=train, held_out=held_out, set_aside=dict(set_aside))
    artifact.write(job.report_path(number), SliceReport(contents=contents))


def _documents(job: SliceJob, number: int, reasons: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a slice; the other records are written to a file and counted by reason."""
    path = job.folder / CONTENT / SET_ASIDE / f"slice-{number:05d}.jsonl"
    partial = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
    with partial.open("w", encoding="utf-8") as file:
        for record in read_slice(job.slices[number], job.recipe.sources):
            if isinstance(record, SetAside):
                reasons[record.reason] += 1
                file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
            else:
                yield record
    partial.replace(path)


def tokenized(
    vocabulary: Vocabulary, languages: Sequence[str], documents: Iterable[Document]
) -> Iterator[tuple[Document, Iterable[TokenizedSentence]]]:
    """Yields each document with the tokens of its sentences; neighbouring short documents are encoded together.

    While the caller uses one batch of documents, a thread encodes the next. `languages` are those of the sources, by
    number.
    """
    tokenizer = vocabulary.tokenizer

    def encoded(batch: list[Document]) -> list[Encoding]:
        return encode_batch(tokenizer, [document.text for document in batch]) if len(batch) > 1 else []

    for batch, encodings in one_ahead(encoded, _batches(documents)):
        starts = [sentence_starts(document.text, languages[document.source]) for document in batch]
        if len(batch) == 1:
            yield batch[0], encode(tokenizer, batch[0].text, starts[0])
        else:
            yield from zip(batch, map(sentences_of, encodings, starts), strict=True)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yields the documents in lists; one of several documents has at most PIECE_CHARACTERS."""
    batch: list[Document] = []
    num_characters = 0
    for document in documents:
        if batch and num_characters + len(document.text) > PIECE_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
        batch.append(document)
        num_characters += len(document.text)
    if batch:
        yield batch


def seal_slices(job: SliceJob, plan: RowsPlan, output: Path, packed: Sequence[int], elapsed_seconds: float) -> None:
    """Turns the finished slices into the folder `output`, whose manifest is written last.

    `packed` are the slices that the last run packed in `elapsed_seconds`. Raises DataError when a split has no rows.
    """
    slices = [artifact.read(SliceReport, job.report_path(number)).contents for number in range(len(job.slices))]
    copies = _count_copies(job)
    counts = {split: Counts(plan.row_length, len(plan.sources)) for split in SPLITS}
    set_aside: Counter[str] = Counter()
    for report in slices:
        set_aside.update(report.set_aside)
        for split in SPLITS:
            counts[split].add(report.of(split))
    for split in SPLITS:
        if not counts[split].rows:
            raise DataError(
                f"none of {counted(counts[split].documents, 'document')} of the {split} split has a token with "
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
    )
    seal(job.folder / CONTENT, output, artifact.dump(RowsManifest(plan=plan, report=report, files={})))


def _count_copies(job: SliceJob) -> dict[Split, int]:
    """Returns how many documents of each split have the text of an earlier document, by their hashes."""
    hashes = np.concatenate([np.load(_hashes_path(job, number)) for number in range(len(job.slices))])
    unique, counts = np.unique(hashes, return_counts=True)
    copies: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    for document_hash, count in zip(unique[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        copies[job.split_of(document_hash)] += count - 1
    return copies


def _hashes_path(job: SliceJob, number: int) -> Path:
    return job.report_path(number).with_suffix(".npy")
