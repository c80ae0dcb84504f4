"""Masked-token accuracy as evaluations and metrics record it: of whole rows, per block, per bin of positions."""

from dataclasses import dataclass

from longmlm.artifacts.artifact import Json

BINS_PER_BLOCK = 8
MIN_BIN_POSITIONS = 16


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
    """Accuracy of whole rows, of each block of base_positions positions and, if kept, of each bin of `bin_starts`."""

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...] = ()


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
