"""Tables of predictions at the masks of a text, with a column for each model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from longmlm.errors import counted
from longmlm.predict.masks import MaskedText
from longmlm.reports.tables import Table, text_table


class Candidate(NamedTuple):
    """A predicted token, its probability, and whether it is the original one."""

    text: str
    probability: float
    is_original: bool


class Prediction(NamedTuple):
    """The likeliest tokens at a mask; `span` is the index of the masked part of the text.

    If a word was masked, `token` is the original token; `rank` (from 1) and `probability` are those of that token.
    """

    span: int
    candidates: tuple[Candidate, ...]
    token: str | None = None
    rank: int = 0
    probability: float = 0.0


def tables(masked: MaskedText, found: Mapping[str, Sequence[Prediction]], top_k: int) -> Iterator[str]:
    """Yields the text around each mask, and its predictions in a table for all models that split the text alike."""
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for name, predictions in found.items():
        alike.setdefault(tuple(one.token for one in predictions), []).append(name)
    for tokens, names in alike.items():
        for number, token in enumerate(tokens):
            own, title = [found[name][number] for name in names], ""
            if number == 0 or masked.word is None:
                are_many = masked.word is not None and len(tokens) > 1
                yield masked.surroundings(own[0].span) + (
                    f" ({counted(len(tokens), 'token')}, all masked)" if are_many else ""
                )
            if len(tokens) > 1:
                title = f"mask {number + 1}" if token is None else f"token {number + 1}: {token}"
            lines = [[f"{rank + 1}", *(_candidate(one, rank) for one in own)] for rank in range(min(top_k, _most(own)))]
            if token is not None and any(one.rank > top_k for one in own):
                lines.append([token, *(f"{_percent(one.probability)}, rank {one.rank:,}" for one in own)])
            yield from ("", text_table(Table([title, *names], lines)), "")


def _most(predictions: Sequence[Prediction]) -> int:
    """Returns the largest number of predicted tokens; a small vocabulary may have fewer than top_k."""
    return max(len(one.candidates) for one in predictions)


def _candidate(prediction: Prediction, index: int) -> str:
    if index >= len(prediction.candidates):
        return ""
    candidate = prediction.candidates[index]
    return f"{'✓ ' if candidate.is_original else ''}{candidate.text} {_percent(candidate.probability)}"


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"
