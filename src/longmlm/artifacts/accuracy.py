"""Masked-token accuracy as evaluations and metrics report it: of whole rows, per block, per position."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Masked-token accuracy in percent, its standard error, and the mean cross-entropy in nats.

    All three are absent if no token was selected.
    """

    accuracy: float | None
    standard_error: float | None
    loss: float | None
    num_selected: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracy of whole rows, of each block of base_positions positions and, if kept, of finer bins of positions."""

    whole: Accuracy
    blocks: tuple[Accuracy, ...]
    positions: tuple[Accuracy, ...] = ()


@dataclass(frozen=True, slots=True)
class FilledMask:
    """A masked position of a row, the true text around it, and the model's likeliest tokens with probabilities.

    Texts keep their white space: `before + truth + after` reads as running text, and so does a guess in truth's place.
    """

    row_id: int
    position: int
    before: str
    after: str
    truth: str
    guesses: tuple[tuple[str, float], ...]


def upgraded_example(content: dict[str, object]) -> dict[str, object]:
    """Returns a FilledMask's content of before format 1, which named its position `place`."""
    return {"position" if key == "place" else key: value for key, value in content.items()}
