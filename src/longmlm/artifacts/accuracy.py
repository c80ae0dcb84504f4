"""Masked-token accuracy as evaluations and metrics report it: of whole rows, per block, per bin of positions."""

from dataclasses import dataclass

BINS_PER_BLOCK = 8
LEAST_BIN_POSITIONS = 16


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Masked-token accuracy in percent, its standard error, and the mean cross-entropy in nats.

    All three are absent if no token was selected.
    """

    __pydantic_config__ = {"extra": "forbid"}

    accuracy: float | None
    standard_error: float | None
    loss: float | None
    num_selected: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracy of whole rows, of each block of base_positions positions and, if kept, of each bin of `bin_starts`."""

    __pydantic_config__ = {"extra": "forbid"}

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...] = ()


@dataclass(frozen=True, slots=True)
class FilledMask:
    """A masked position of a row, the true text around it, and the model's likeliest tokens with probabilities.

    Texts keep their white space: `before + truth + after` reads as running text, and so does a guess in truth's place.
    """

    __pydantic_config__ = {"extra": "forbid"}

    row_id: int
    position: int
    before: str
    after: str
    truth: str
    guesses: tuple[tuple[str, float], ...]


def bins_per_block(base_positions: int) -> int:
    """Returns the number of bins per block: at most 8, each at least 16 positions wide (but at least one)."""
    return max(1, min(BINS_PER_BLOCK, base_positions // LEAST_BIN_POSITIONS))


def bin_starts(base_positions: int, row_length: int) -> tuple[int, ...]:
    """Returns the first position of each bin of a row; the bins of a block differ in width by at most one."""
    bins = bins_per_block(base_positions)
    blocks = range(0, row_length, base_positions)
    starts = (block_start - -part * base_positions // bins for block_start in blocks for part in range(bins))
    return tuple(start for start in starts if start < row_length)


def upgraded_example(content: dict[str, object]) -> dict[str, object]:
    """Returns a FilledMask's content of before format 1, which named its position `place`."""
    return {"position" if key == "place" else key: value for key, value in content.items()}
