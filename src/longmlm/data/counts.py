"""The running counts of a split: of its documents, sentences, tokens and rows, while they are packed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longmlm.artifacts.rows import NUM_FILLS, SplitReport
from longmlm.data.row import Row, TokenizedSentence
from longmlm.settings.prepare import SPECIAL_TOKENS

TOTALS = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")
PER_SOURCE = ("tokens_per_source", "unknown_per_source", "rows_per_source")
HISTOGRAMS = (*PER_SOURCE, "document_lengths", "fills")


@dataclass(slots=True)
class Counts:
    """The running counts of a split: totals and, by index, histograms, under their names in SplitReport."""

    row_length: int
    num_sources: int
    unknown: int | None = None  # the id of [UNK]
    totals: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in HISTOGRAMS})

    def count_sentences(
        self, sentences: Iterable[TokenizedSentence], source: int, capacity: int
    ) -> Iterator[TokenizedSentence]:
        """Yields a document's sentences, and counts them and the document; `capacity` is that of a row."""
        num_sentences = num_cut = num_tokens = 0
        for sentence in sentences:
            length = len(sentence)
            num_sentences += 1
            num_cut += length > capacity
            num_tokens += length
            yield sentence
        self.totals.update(documents=1, sentences=num_sentences, cut_sentences=num_cut, tokens=num_tokens)
        self.histograms["tokens_per_source"][source] += num_tokens
        if num_tokens:
            self.histograms["document_lengths"][num_tokens.bit_length() - 1] += 1

    def count_rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows, and counts them."""
        for row in rows:
            self.totals.update(rows=1, separators=len(row.document_starts) - 1)
            self.histograms["fills"][(NUM_FILLS * len(row) - 1) // self.row_length] += 1
            source = int(row.document_sources[0])
            self.histograms["rows_per_source"][source] += 1
            if self.unknown is not None:
                self.histograms["unknown_per_source"][source] += int((row.input_ids == self.unknown).sum())
            yield row

    def add(self, report: SplitReport) -> None:
        """Adds the counts of a slice."""
        self.totals.update({name: getattr(report, name) for name in TOTALS})
        for name, histogram in self.histograms.items():
            histogram.update(dict(enumerate(getattr(report, name))))

    def report(self, copies: int = 0) -> SplitReport:
        """Returns the counts so far; `copies` is only known over all slices."""
        totals, longest = self.totals, max(self.histograms["document_lengths"], default=-1)
        counts: dict[str, Any] = {name: totals[name] for name in TOTALS}  # Any: totals, and histograms below
        lengths = (*[self.num_sources] * len(PER_SOURCE), longest + 1, NUM_FILLS)
        for (name, histogram), length in zip(self.histograms.items(), lengths, strict=True):
            counts[name] = tuple(histogram[index] for index in range(length))
        return SplitReport(**counts, fill_rate=fill_rate(totals, self.row_length), copies=copies)


def fill_rate(totals: Counter[str], row_length: int) -> float:
    """Returns the share of the positions of all rows that hold a token."""
    content = totals["tokens"] + totals["separators"] + SPECIAL_TOKENS * totals["rows"]
    return content / max(1, totals["rows"] * row_length)
