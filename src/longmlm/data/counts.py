"""Counts of what goes into rows: taken while a slice is packed, then added up over slices."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from longmlm.artifacts.rows import SplitReport
from longmlm.data.encoding import Tokens
from longmlm.data.rows import Row

NUM_FILLS = 20
TOTALS = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")


@dataclass(slots=True)
class Counts:
    """The running counts of a split; the histograms are SplitReport's lists by index."""

    row_length: int
    num_sources: int
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    rows: int = 0
    separators: int = 0
    cut_sentences: int = 0
    tokens_per_source: Counter[int] = field(default_factory=Counter)
    document_lengths: Counter[int] = field(default_factory=Counter)
    fills: Counter[int] = field(default_factory=Counter)

    def count_sentences(self, sentences: Iterable[Tokens], source: int) -> Iterator[Tokens]:
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
            yield row

    def add(self, report: SplitReport) -> None:
        """Adds the counts of a slice."""
        for name in TOTALS:
            setattr(self, name, getattr(self, name) + getattr(report, name))
        for name in ("tokens_per_source", "document_lengths", "fills"):
            getattr(self, name).update(dict(enumerate(getattr(report, name))))

    def report(self, copies: int | None = None) -> SplitReport:
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
            document_lengths=_by_index(self.document_lengths, max(self.document_lengths, default=-1) + 1),
            fills=_by_index(self.fills, NUM_FILLS),
        )


def _by_index(histogram: Counter[int], length: int) -> tuple[int, ...]:
    return tuple(histogram[index] for index in range(length))
