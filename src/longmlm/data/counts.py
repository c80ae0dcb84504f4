"""What went into rows, counted while it passes, slice by slice, and added up."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt32

from longmlm.data.packing import Row, TokenizedDocument
from longmlm.data.rows import SPLITS

NUM_FILLS = 20


@dataclass(slots=True)
class Counts:
    """What went into the rows of one split.

    `tokens_per_source` has a place for each source; `document_lengths[k]` counts documents of 2^k to 2^(k+1) - 1
    tokens; `fills[k]` counts rows of which a share above k/20, up to (k+1)/20, is filled.
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    rows: int = 0
    separators: int = 0
    cut_sentences: int = 0
    tokens_per_source: list[int] = field(default_factory=list)
    document_lengths: list[int] = field(default_factory=list)
    fills: list[int] = field(default_factory=lambda: [0] * NUM_FILLS)

    def __add__(self, other: "Counts") -> "Counts":
        both: dict[str, Any] = {}
        for name in (item.name for item in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            both[name] = _sums(mine, theirs) if isinstance(mine, list) else mine + theirs
        return Counts(**both)

    def counted(self, document: TokenizedDocument, capacity: int) -> Iterator[UInt32[np.ndarray, " tokens"]]:
        """Yields the document's sentences and counts them; one of more than `capacity` tokens is going to be cut."""
        before = self.tokens
        self.documents += 1
        for sentence in document.sentences:
            self.sentences += 1
            self.tokens += len(sentence)
            self.cut_sentences += len(sentence) > capacity
            yield sentence
        length = self.tokens - before
        self.tokens_per_source = _sums(self.tokens_per_source, [0] * document.source + [length])
        if length:
            self.document_lengths = _sums(self.document_lengths, [0] * (length.bit_length() - 1) + [1])

    def count_row(self, row: Row, row_length: int) -> None:
        """Counts a row that is going to be written."""
        self.rows += 1
        self.separators += len(row.document_starts) - 1
        self.fills[(NUM_FILLS * len(row.input_ids) - 1) // row_length] += 1


def _sums(left: Iterable[int], right: Iterable[int]) -> list[int]:
    return [one + other for one, other in zip_longest(left, right, fillvalue=0)]


def merged(reports: Path, row_length: int, num_sources: int) -> dict[str, Any]:
    """Returns what all slices counted, added up by split."""
    counts = {split: Counts(tokens_per_source=[0] * num_sources) for split in SPLITS}
    for path in sorted(reports.glob("slice-*.json")):
        of_slice = json.loads(path.read_text(encoding="utf-8"))
        for split in SPLITS:
            counts[split] += Counts(**of_slice[split])
    report: dict[str, Any] = {}
    for split, count in counts.items():
        filled = count.tokens + count.separators + 2 * count.rows
        report[split] = {**asdict(count), "fill_rate": filled / max(1, count.rows * row_length)}
    return report


def tokens_of(reports: Path, ranks: Sequence[int]) -> int:
    """Returns how many tokens the slices of these numbers gave."""
    slices = [json.loads((reports / f"slice-{rank:05d}.json").read_text(encoding="utf-8")) for rank in ranks]
    return sum(of_slice[split]["tokens"] for of_slice in slices for split in SPLITS)


def reasons_in(set_aside: Path) -> dict[str, int]:
    """Returns how many records were set aside for which reason."""
    reasons: Counter[str] = Counter()
    for path in set_aside.glob("slice-*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            reasons.update(json.loads(line)["reason"] for line in lines)
    return dict(sorted(reasons.items()))
