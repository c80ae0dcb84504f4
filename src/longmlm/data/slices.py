"""One slice of a corpus to shards: read, split, tokenized and packed by whichever process is given its number."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, SetAside, SliceReport, Split
from longmlm.data.corpus import Document, Slice, read_slice, split_of, text_hash
from longmlm.data.counts import Counts
from longmlm.data.encoding import PIECE_CHARACTERS, Tokens, encode, encode_batch
from longmlm.data.packing import OpenRow, TokenizedDocument, pack_document
from longmlm.data.row import Row
from longmlm.data.rows import Shard, open_shard
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary
from longmlm.folders import PARTIAL
from longmlm.settings.prepare import PackingMode, PrepareRecipe

CONTENT = "content"  # the folder that becomes the output
SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class SliceJob:
    """All that packing any slice of a data set needs; it is sent to the processes that do it.

    `folder` receives, for each slice, its part of `content/`, a report and the hashes of its documents.
    """

    recipe: PrepareRecipe
    vocabulary: Vocabulary
    slices: tuple[Slice, ...]
    folder: Path

    def report_path(self, number: int) -> Path:
        """Returns the path of a slice's report, which exists when the slice is finished."""
        return self.folder / "reports" / f"slice-{number:05d}.json"

    def hashes_path(self, number: int) -> Path:
        """Returns the path of the hashes of a slice's documents."""
        return self.folder / "reports" / f"slice-{number:05d}.npy"

    def unfinished(self) -> list[int]:
        """Returns the numbers of the slices that are still to be packed."""
        return [number for number in range(len(self.slices)) if not self.report_path(number).is_file()]

    def split_of(self, document_hash: int) -> Split:
        """Returns the split of the documents with this hash."""
        return split_of(document_hash, self.recipe.held_out_fraction)


@dataclass(frozen=True, slots=True)
class Side:
    """One split of a slice: its shard, the row that is being filled, and its counts."""

    shard: Shard
    row: OpenRow
    counts: Counts

    def add(self, document: TokenizedDocument, packing: PackingMode) -> None:
        """Packs a document, and writes the rows that it fills."""
        counted = TokenizedDocument(self.counts.count_sentences(document), document.source)
        for row in pack_document(self.row, counted, packing):
            self._write(row)

    def close(self) -> None:
        """Writes the row that is still open."""
        if self.row.length:
            self._write(self.row.close())

    def _write(self, row: Row) -> None:
        self.counts.count_row(row)
        self.shard.add(row)


def pack_slice(job: SliceJob, number: int) -> None:
    """Writes the shards, rejected records, hashes and report of a slice; a finished slice is left as it is.

    The report comes last, so a slice is complete or counts as absent.
    """
    if job.report_path(number).is_file():
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # slices run in parallel, not the tokenizer
    sides: dict[Split, Side] = {}
    hashes: list[int] = []
    set_aside: Counter[str] = Counter()
    with ExitStack() as shards:
        for document, sentences in _tokenized(job, _documents(job, number, set_aside)):
            hashes.append(text_hash(document.text))
            split = job.split_of(hashes[-1])
            if split not in sides:
                path = job.folder / CONTENT / split / f"slice-{number:05d}.arrow"
                shard = shards.enter_context(open_shard(path, job.vocabulary.size))
                row = OpenRow(job.recipe.row_length - 2, job.vocabulary.special)
                sides[split] = Side(shard, row, Counts(job.recipe.row_length))
            sides[split].add(TokenizedDocument(sentences, document.source), job.recipe.packing)
        for side in sides.values():
            side.close()
    counts = {split: sides[split].counts if split in sides else Counts(job.recipe.row_length) for split in SPLITS}
    reports = {split: counts[split].report(len(job.recipe.sources)) for split in SPLITS}
    np.save(job.hashes_path(number), np.array(hashes, dtype=np.uint64))
    report = SliceReport(train=reports["train"], held_out=reports["held_out"], set_aside=dict(set_aside))
    artifact.write(job.report_path(number), report)


def _documents(job: SliceJob, number: int, reasons: Counter[str]) -> Iterator[Document]:
    """Yields the documents of a slice; the other records are written to a file and counted by reason."""
    path = job.folder / CONTENT / SET_ASIDE / f"slice-{number:05d}.jsonl"
    partial = path.with_name(f"{path.stem}-{os.getpid()}{PARTIAL}")
    with partial.open("w", encoding="utf-8") as file:
        for record in read_slice(job.slices[number], job.recipe.sources):
            if isinstance(record, Document):
                yield record
            else:
                reasons[record.reason] += 1
                line = SetAside(origin=record.origin, reason=record.reason, source=record.source)
                file.write(json.dumps(artifact.dump(line), ensure_ascii=False) + "\n")
    partial.replace(path)


def _tokenized(job: SliceJob, documents: Iterable[Document]) -> Iterator[tuple[Document, Iterable[Tokens]]]:
    """Yields each document with the tokens of its sentences; neighbouring short documents are encoded together."""
    tokenizer, sources = job.vocabulary.tokenizer, job.recipe.sources
    for batch in _batches(documents):
        starts = [sentence_starts(document.text, sources[document.source].language) for document in batch]
        if len(batch) == 1:
            yield batch[0], encode(tokenizer, batch[0].text, starts[0])
        else:
            texts = [cast(str, document.text) for document in batch]  # none is long enough to be a LongText
            yield from zip(batch, encode_batch(tokenizer, texts, starts), strict=True)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yields the documents in lists; one of several documents has at most PIECE_CHARACTERS."""
    batch: list[Document] = []
    room = PIECE_CHARACTERS
    for document in documents:
        if batch and len(document.text) > room:
            yield batch
            batch, room = [], PIECE_CHARACTERS
        batch.append(document)
        room -= len(document.text)
        if room <= 0:
            yield batch
            batch, room = [], PIECE_CHARACTERS
    if batch:
        yield batch
