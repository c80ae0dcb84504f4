"""Predictions at the masks of a text as tables, in which models stand side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from longmlm.predict.masks import MaskedText
from longmlm.reports.tables import Table, text_table


class Guess(NamedTuple):
    """A token, its probability, and whether it is the one that was masked."""

    text: str
    probability: float
    is_right: bool


class Prediction(NamedTuple):
    """The likeliest tokens at a mask, which is in the part of the text with the index `span`.

    If a word was masked, `token` is its token there, which has this `rank` among all tokens and this `probability`.
    """

    span: int
    guesses: tuple[Guess, ...]
    token: str | None = None
    rank: int = 0
    probability: float = 0.0


def tables(masked: MaskedText, found: Mapping[str, Sequence[Prediction]], top_k: int) -> Iterator[str]:
    """Yields the text around each mask and a table of predictions; of models whose tokens differ, one table each."""
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for name, predictions in found.items():
        alike.setdefault(tuple(one.token for one in predictions), []).append(name)
    for tokens, names in alike.items():
        for number, token in enumerate(tokens):
            own, title = [found[name][number] for name in names], ""
            if number == 0 or masked.word is None:
                are_many = masked.word is not None and len(tokens) > 1
                yield masked.surroundings(own[0].span) + (f" ({len(tokens)} tokens, all masked)" if are_many else "")
            if len(tokens) > 1:
                title = f"mask {number + 1}" if token is None else f"token {number + 1}: {token}"
            lines = [[f"{rank + 1}", *(_guess(one, rank) for one in own)] for rank in range(min(top_k, _most(own)))]
            if token is not None and any(one.rank > top_k for one in own):
                lines.append([token, *(f"{_percent(one.probability)}, rank {one.rank:,}" for one in own)])
            yield from ("", text_table(Table([title, *names], lines)), "")


def _most(predictions: Sequence[Prediction]) -> int:
    """Returns how many guesses there are at most: a small vocabulary has fewer than are asked for."""
    return max(len(one.guesses) for one in predictions)


def _guess(prediction: Prediction, index: int) -> str:
    if index >= len(prediction.guesses):
        return ""
    guess = prediction.guesses[index]
    return f"{'✓ ' if guess.is_right else ''}{guess.text} {_percent(guess.probability)}"


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"
