"""Masked-token accuracy as evaluations and metrics record it: of whole rows, per block, per bin of positions."""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal, get_args

from longmlm.errors import counted

Grouping = Literal["position", "offset", "occurrence", "distance"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
OCCURRENCES = CHUNK, ROW, NOWHERE = "chunk", "row", "nowhere"

BINS_PER_BLOCK = 8
MIN_BIN_POSITIONS = 16
MIN_ROWS = 2  # without which an error is unknown
ERRORS_OF_CHANCE = 2  # a difference of fewer standard errors may be chance
RECOVERED = (
    "Recovered: in two evaluations in a row, the accuracy on whole rows reaches base_chunks, that of the base model on "
    "the same tokens in chunks of its length, or is below it by less than two standard errors of the difference, "
    "paired by row. The first of the two counts."
)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Masked-token accuracy and its standard error in percent, and the mean cross-entropy in nats.

    All three are None if no token was selected.
    """

    accuracy: float | None
    standard_error: float | None
    loss: float | None
    num_selected: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracy of whole rows, of each block of base_positions positions and of each bin of `bin_starts`.

    `selected` and `correct` count the selected tokens of each row and those predicted correctly. `sources` has the same
    for each source, without blocks, bins and groups, if the rows come from several. `groups` has the accuracy of each
    group of tokens by its name, for each grouping but that by position (evaluation/frozen.py).
    """

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...]
    selected: tuple[int, ...]
    correct: tuple[int, ...]
    sources: dict[str, "Measured"] = field(default_factory=dict)
    groups: dict[Grouping, dict[str, Accuracy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.selected) != len(self.correct):
            raise ValueError("selected and correct count different numbers of rows")


@dataclass(frozen=True, slots=True)
class PairAccuracy:
    """Accuracy on pairs and its standard error in percent, the mean cross-entropy in nats, and the number of pairs.

    Always predicting the more frequent label would be right for `larger_share` percent.
    """

    accuracy: float
    standard_error: float
    loss: float
    num_pairs: int
    larger_share: float

    def __str__(self) -> str:
        found, compared = f"{self.accuracy:.2f} ± {self.standard_error:.2f} %", f"{self.larger_share:.2f} %"
        return f"{found} on {counted(self.num_pairs, 'pair')} (always the more frequent label: {compared})"


@dataclass(frozen=True, slots=True)
class FilledMask:
    """A masked position, its true text and the text around it, and the model's likeliest tokens with probabilities.

    Texts keep their white space: `before + truth + after` is running text, also with a guess instead of the truth.
    """

    row_id: int
    position: int
    before: str
    after: str
    truth: str
    guesses: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two accuracies, and its standard error, in percentage points."""

    points: float
    standard_error: float

    @property
    def is_within_error(self) -> bool:
        """Whether the difference is smaller than two standard errors."""
        return abs(self.points) < ERRORS_OF_CHANCE * self.standard_error

    @property
    def is_loss(self) -> bool:
        """Whether the first accuracy is lower by two standard errors or more."""
        return self.points < 0 and not self.is_within_error

    def compared_with(self, other: str) -> str:
        """Returns the difference in words: "0.30 ± 1.60 points below OTHER, which may be chance"."""
        side = "below" if self.points < 0 else "above"
        chance = ", which may be chance" if self.is_within_error else ""
        return f"{abs(self.points):.2f} ± {self.standard_error:.2f} points {side} {other}{chance}"


def has_recovered(gain: Difference | None) -> bool | None:
    """Returns whether a model has recovered, from its `gain` over its base model on the same tokens, paired by row.

    It has unless it is lower by two standard errors or more; None if they were not compared. One measurement decides
    for a finished model, two for a run: `first_recovered`.
    """
    return None if gain is None else not gain.is_loss


def first_recovered(gains: Iterable[Difference | None]) -> int | None:
    """Returns the index of the first of two consecutive evaluations that have recovered; None if there are none.

    A single one may be chance, and with few rows often is.
    """
    reached = [has_recovered(gain) for gain in gains]
    return next((index for index, (now, then) in enumerate(pairwise(reached)) if now and then), None)


def when_recovered(gain: Difference | None, step: int | None) -> str:
    """Returns in words whether a run has recovered, from its latest gain and the recorded step, if any."""
    if step is None:
        unconfirmed = "at the base model's accuracy, not yet confirmed by a second evaluation"
        return unconfirmed if has_recovered(gain) else "not yet recovered"
    return f"recovered at step {step:,}" + ("" if has_recovered(gain) else ", but no longer")


def accuracy_difference(first: Accuracy, second: Accuracy) -> Difference | None:
    """Returns first - second, whose errors are added as if they were independent; None where one has no accuracy."""
    if first.accuracy is None or second.accuracy is None:
        return None
    error = math.hypot(first.standard_error or 0.0, second.standard_error or 0.0)
    return Difference(first.accuracy - second.accuracy, error)


def row_difference(first: Measured, second: Measured) -> Difference | None:
    """Returns first - second on whole rows, which may be accuracies on different tokens of the same rows.

    The standard error is that of a difference of two ratios of totals over rows (Cochran 1977, 6.12). For a single row,
    and for measurements of different rows, it is that of `accuracy_difference`.
    """
    gain = accuracy_difference(first.whole, second.whole)
    if gain is None or len(first.selected) != len(second.selected):
        return gain
    num_rows = sum(any(selected) for selected in zip(first.selected, second.selected, strict=True))
    if num_rows < MIN_ROWS:
        return gain
    residuals = [one - other for one, other in zip(_residuals(first), _residuals(second), strict=True)]
    squares = sum(residual**2 for residual in residuals)
    return Difference(gain.points, 100 * math.sqrt(squares * num_rows / (num_rows - 1)))


def _residuals(measured: Measured) -> list[float]:
    """Returns what each row adds to the share of correct predictions beyond its expected part."""
    total = sum(measured.selected)
    share = sum(measured.correct) / total
    return [
        (correct - share * selected) / total
        for selected, correct in zip(measured.selected, measured.correct, strict=True)
    ]


def paired_difference(first: Sequence[Measured], second: Sequence[Measured]) -> Difference | None:
    """Returns the mean of first - second over pairs that measured the same tokens; None if they differ.

    Each row's counts are added up over the pairs, which may be seeds of one model. The standard error is that of a
    ratio of totals over rows. Two rows of 10 selected tokens, of which the models predict 4 and 3, 5 and 2 correctly:
    differences of 1 and 3 in 20 tokens are 20 points, with an error of
    100 * sqrt((1 - 2)^2 + (3 - 2)^2) * sqrt(2 / 1) / 20 = 10.
    """
    selected = [measured.selected for measured in (*first, *second)]
    if not selected or any(counts != selected[0] for counts in selected):
        return None
    totals = [len(first) * count for count in selected[0]]
    won, lost = ([sum(row) for row in zip(*(one.correct for one in side), strict=True)] for side in (first, second))
    return difference([a - b for a, b in zip(won, lost, strict=True)], totals)


def difference(gains: Sequence[int], totals: Sequence[int]) -> Difference | None:
    """Returns sum(gains) / sum(totals) over rows, as a difference with its standard error; None with fewer than two."""
    if (num_rows := sum(total > 0 for total in totals)) < MIN_ROWS:
        return None
    share = sum(gains) / sum(totals)
    squares = sum((gain - share * total) ** 2 for gain, total in zip(gains, totals, strict=True))
    error = math.sqrt(squares * num_rows / (num_rows - 1)) / sum(totals)
    return Difference(100 * share, 100 * error)


def bins_per_block(base_positions: int) -> int:
    """Returns the number of bins per block: from 1 to 8, each at least 16 positions wide if there are several."""
    return max(1, min(BINS_PER_BLOCK, base_positions // MIN_BIN_POSITIONS))


def bin_starts(base_positions: int, row_length: int) -> tuple[int, ...]:
    """Returns the first position of each bin of a row; the bins of a block differ in width by at most one."""
    return tuple(start for start in group_starts("position", base_positions, row_length) if start < row_length)


def block_names(base_positions: int, row_length: int) -> list[str]:
    """Returns the first and last position of each block of a row, such as "0–127"."""
    return _span_names([*range(0, row_length, base_positions), row_length])


def group_starts(grouping: Grouping, base_positions: int, row_length: int) -> list[int]:
    """Returns the lowest value of each group, by which values are sorted into groups.

    Positions are grouped by bins, those of the last block included that are beyond the row; offsets in the document by
    halves of base_positions; occurrences are 0, 1 and 2. Distances are grouped by powers of two, of which the one
    nearest to `chunk_content`, the first distance that no chunk spans, is replaced by it; those from the row length on
    mean that there is no other occurrence. For 16 positions and rows of 40: 1, 2, 4, 8, 14, 32, 40.
    """
    blocks = range(0, row_length, base_positions)
    match grouping:
        case "position":
            bins = bins_per_block(base_positions)
            return [start - -part * base_positions // bins for start in blocks for part in range(bins)]
        case "offset":
            return [start - -half * base_positions // 2 for start in blocks for half in range(2)]
        case "occurrence":
            return [*range(len(OCCURRENCES))]
        case "distance":
            border, powers = chunk_content(base_positions), range(row_length.bit_length() + 1)
            starts = [border if power == round(math.log2(border)) else 2**power for power in powers]
            return [*(start for start in starts if start < row_length), row_length]


@functools.cache
def group_ends(base_positions: int, row_length: int) -> tuple[int, ...]:
    """Returns how many groups there are up to the end of each grouping, if they are numbered one after another."""
    return (*accumulate(len(group_starts(grouping, base_positions, row_length)) for grouping in GROUPINGS),)


def group_names(grouping: Grouping, base_positions: int, row_length: int) -> list[str]:
    """Returns the names of the groups: an occurrence, or the lowest and the highest value, such as "64–127"."""
    starts = group_starts(grouping, base_positions, row_length)
    match grouping:
        case "position" | "offset":
            return _span_names([*starts, len(range(0, row_length, base_positions)) * base_positions])
        case "occurrence":
            return [*OCCURRENCES]
        case "distance":
            return [*_span_names(starts), NOWHERE]


def chunk_content(base_positions: int) -> int:
    """Returns how many tokens of a row a chunk has between its two special tokens."""
    return max(1, base_positions - 2)


def _span_names(edges: Sequence[int]) -> list[str]:
    return [f"{start}–{end - 1}" if end - start > 1 else f"{start}" for start, end in pairwise(edges)]
