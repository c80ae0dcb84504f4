"""Masked-token accuracy as evaluations and metrics record it: of whole rows, per block, per bin of positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longmlm.artifacts.artifact import Json

BINS_PER_BLOCK = 8
MIN_BIN_POSITIONS = 16
MIN_ROWS = 2  # without which an error is unknown


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
    """Accuracy of whole rows, of each block of base_positions positions and, if kept, of each bin of `bin_starts`.

    `selected` and `correct` count the selected tokens of each row and those predicted correctly; both are empty in
    evaluations of early versions.
    """

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...] = ()
    selected: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()


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


def paired_difference(first: Sequence[Measured], second: Sequence[Measured]) -> Difference | None:
    """Returns the mean of first - second over pairs that measured the same tokens; None if they differ or are unknown.

    Each row's counts are added up over the pairs, which may be seeds of one model. The standard error is that of a
    ratio of totals over rows. Two rows of 10 selected tokens, of which the models predict 4 and 3, 5 and 2 correctly:
    differences of 1 and 3 in 20 tokens are 20 points, with an error of
    100 * sqrt((1 - 2)^2 + (3 - 2)^2) * sqrt(2 / 1) / 20 = 10.
    """
    selected = [measured.selected for measured in (*first, *second)]
    if not selected or not selected[0] or any(counts != selected[0] for counts in selected):
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
    bins = bins_per_block(base_positions)
    blocks = range(0, row_length, base_positions)
    starts = (block_start - -part * base_positions // bins for block_start in blocks for part in range(bins))
    return tuple(start for start in starts if start < row_length)


def upgraded_example(content: Json) -> Json:
    """Returns a FilledMask's content from before format 1, which called its position `place`."""
    return {"position" if key == "place" else key: value for key, value in content.items()}
