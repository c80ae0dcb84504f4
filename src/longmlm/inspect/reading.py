"""A row as a person reads it: the text of its documents in pieces, and what masking does to each piece.

RoBERTa's tokens `<s> The ĠHan Ġriver Ġrose . </s>`, with a random token for `The` and a mask for `Ġriver`, give:

    white space   text    what masking does
                  The     random, shown as apple
    one space     Han
    one space     river   masked
    one space     rose
                  .

A character whose bytes are several tokens is one piece.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from longmlm.artifacts.rows import SourceRecord
from longmlm.batches.masking import MaskedRow
from longmlm.data.packing import MAX_CHARACTER_BYTES
from longmlm.data.vocabulary import Vocabulary, continuation, decode
from longmlm.errors import counted
from longmlm.reports.packing import name_of
from longmlm.reports.pages import visible

Outcome = Literal["plain", "masked", "random", "unchanged"]
Tokens = Int64[np.ndarray, " tokens"]
CONTEXT_TOKENS = 8  # that decide about white space before a token
INCOMPLETE = "\ufffd"  # which the first bytes of a character are decoded to


class Piece(NamedTuple):
    """White space and the text after it; what masking does to it, and the random token `shown` in its place.

    `position` is that of its last token in the row. `opens` says what begins here, if the row knows it.
    """

    position: int
    space: str
    text: str
    outcome: Outcome = "plain"
    shown: str = ""
    opens: Literal["", "word", "sentence"] = ""


class DocumentPart(NamedTuple):
    """What a row has of a document: the name and the language of its source, the first and last position, the text."""

    source: str
    language: str
    first: int
    last: int
    pieces: list[Piece]


class Guess(NamedTuple):
    """A token that a model predicts, its probability, and whether it is the right one."""

    text: str
    probability: float
    is_right: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A row as a model reads it: under the mask of an epoch, or in a view of the evaluation.

    `guesses` has, by the name of a model, its likeliest tokens at each of the `selected` ones.
    """

    title: str
    masked: MaskedRow
    parts: Sequence[DocumentPart]
    selected: Sequence[Piece]
    guesses: Mapping[str, Sequence[Sequence[Guess]]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """How many tokens are selected, what happens to them, and how many each model predicts correctly."""
        outcomes = [token.outcome for token in self.selected]
        shares = [
            f"{outcomes.count(outcome)} {outcome}"
            for outcome in ("masked", "random", "unchanged")
            if outcome in outcomes
        ]
        right = {name: sum(first.is_right for first, *_ in guesses) for name, guesses in self.guesses.items()}
        correct = [f"{name} predicts {number} correctly" for name, number in right.items()]
        return "; ".join([f"{counted(len(outcomes), 'token')} selected ({', '.join(shares) or 'none'})", *correct])


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns the tokens of rows into text; `sources` are those of the rows."""

    vocabulary: Vocabulary
    sources: Sequence[SourceRecord]

    def read(self, title: str, masked: MaskedRow, offset: int = 0) -> Reading:
        """Returns a row, or a view of one, whose positions in the row are greater by `offset`."""
        row, ids, parts = masked.row, original_ids(masked), []
        starts = row.document_starts.tolist()
        followings = [*starts[1:], len(row)]
        for start, following, number in zip(starts, followings, row.document_sources.tolist(), strict=True):
            end = following
            while end > start and ids[end - 1] == self.vocabulary.special.sep:  # a chunk adds its own
                end -= 1
            source, pieces = self.sources[number], list(self._pieces(masked, ids, range(start, end), offset))
            if pieces:  # else a chunk begins with a separator
                name = source.name or name_of(source)
                parts.append(DocumentPart(name, source.language, start + offset, end - 1 + offset, pieces))
        selected = [
            Piece(
                position + offset,
                "",
                visible(self.text(ids, position, ids[[position]])),
                *self._outcome(masked, ids, position),
            )
            for position in masked.selected.tolist()
        ]
        return Reading(title, masked, parts, selected)

    def text(self, ids: Tokens, position: int, token_ids: Int64[np.ndarray, " more"]) -> str:
        """Returns the text of tokens that follow the first `position` ones of a row."""
        earlier = ids[max(0, position - CONTEXT_TOKENS) : position]
        return continuation(
            lambda some: decode(self.vocabulary, np.array(some, int)), earlier.tolist(), token_ids.tolist()
        )

    def _pieces(self, masked: MaskedRow, ids: Tokens, positions: range, offset: int) -> Iterator[Piece]:
        row, selected, begin = masked.row, set(masked.selected.tolist()), positions.start
        sentences = set() if row.sentence_starts is None else set(row.sentence_starts.tolist())
        is_empty = is_after_space = True
        for position in positions:
            text = self.text(ids, begin, ids[begin : position + 1])
            is_last = position + 1 in (positions.stop, begin + MAX_CHARACTER_BYTES)
            if text.endswith(INCOMPLETE) and not is_last:
                continue
            word = text.lstrip()
            space = "" if is_empty else text[: len(text) - len(word)]
            chosen = next((one for one in range(begin, position + 1) if one in selected), None)
            outcome, shown = ("plain", "") if chosen is None else self._outcome(masked, ids, chosen)
            if outcome != "plain" and not word:  # white space is shown as a symbol, and a line ends nevertheless
                yield Piece(position + offset, "", visible(text), outcome, shown)
                outcome, shown = "plain", ""
            opens = ""
            if begin in sentences and not is_empty:
                opens = "sentence"
            elif row.is_word_start is not None and row.is_word_start[begin] and not (space or is_after_space):
                opens = "word"
            yield Piece(position + offset, space, word, outcome, shown, opens)
            is_empty, is_after_space = is_empty and not word, (space + word)[-1:].isspace()
            begin = position + 1

    def _outcome(self, masked: MaskedRow, ids: Tokens, position: int) -> tuple[Outcome, str]:
        """Returns what is done to a selected token, and the random token in its place."""
        seen = masked.row.input_ids[position]
        if seen == self.vocabulary.special.mask:
            return "masked", ""
        if seen == ids[position]:
            return "unchanged", ""
        return "random", visible(self.text(ids, position, masked.row.input_ids[[position]]))


def original_ids(masked: MaskedRow) -> Tokens:
    """Returns the tokens before masking."""
    ids = masked.row.input_ids.astype(np.int64)
    ids[masked.selected] = masked.labels
    return ids
