"""Counts of what goes into rows: taken while a slice is packed, then added up over slices."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from longmlm.artifacts.rows import SplitReport
from longmlm.data.encoding import Tokens
from longmlm.data.packing import TokenizedDocument
from longmlm.data.row import Row

NUM_FILLS = 20
FILLING = ("tokens", "separators", "rows")


@dataclass(slots=True)
class Counts:
    """The running counts of one split of a slice; the histograms are SplitReport's lists by index."""

    row_length: int
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    rows: int = 0
    separators: int = 0
    cut_sentences: int = 0
    tokens_per_source: Counter[int] = field(default_factory=Counter)
    document_lengths: Counter[int] = field(default_factory=Counter)
    fills: Counter[int] = field(default_factory=Counter)

    def count_sentences(self, document: TokenizedDocument) -> Iterator[Tokens]:
        """Yields the document's sentences, and counts them and the document."""
        length = 0
        for sentence in document.sentences:
            self.sentences += 1
            length += len(sentence)
            self.cut_sentences += len(sentence) > self.row_length - 2
            yield sentence
        self.documents += 1
        self.tokens += length
        self.tokens_per_source[document.source] += length
        if length:
            self.document_lengths[length.bit_length() - 1] += 1

    def count_row(self, row: Row) -> None:
        """Counts a row."""
        self.rows += 1
        self.separators += len(row.document_starts) - 1
        self.fills[(NUM_FILLS * len(row) - 1) // self.row_length] += 1

    def report(self, num_sources: int) -> SplitReport:
        """Returns the counts so far; copies are only known over all slices."""
        return SplitReport(
            documents=self.documents,
            sentences=self.sentences,
            tokens=self.tokens,
            rows=self.rows,
            separators=self.separators,
            cut_sentences=self.cut_sentences,
            fill_rate=_fill_rate(self.tokens, self.separators, self.rows, self.row_length),
            tokens_per_source=_entries(self.tokens_per_source, num_sources),
            document_lengths=_entries(self.document_lengths),
            fills=_entries(self.fills, NUM_FILLS),
        )


def added(reports: Sequence[SplitReport], row_length: int, copies: int) -> SplitReport:
    """Returns the counts of all slices of a split together."""
    tokens, separators, rows = (sum(getattr(report, name) for report in reports) for name in FILLING)
    return SplitReport(
        documents=sum(report.documents for report in reports),
        sentences=sum(report.sentences for report in reports),
        tokens=tokens,
        rows=rows,
        separators=separators,
        cut_sentences=sum(report.cut_sentences for report in reports),
        fill_rate=_fill_rate(tokens, separators, rows, row_length),
        copies=copies,
        tokens_per_source=_sums(report.tokens_per_source or () for report in reports),
        document_lengths=_sums(report.document_lengths or () for report in reports),
        fills=_sums(report.fills or () for report in reports),
    )


def _fill_rate(tokens: int, separators: int, rows: int, row_length: int) -> float:
    return (tokens + separators + 2 * rows) / max(1, rows * row_length)


def _entries(histogram: Counter[int], least: int = 0) -> tuple[int, ...]:
    return tuple(histogram[number] for number in range(max(least, max(histogram, default=-1) + 1)))


def _sums(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(counts) for counts in zip_longest(*histograms, fillvalue=0))
