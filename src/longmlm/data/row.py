"""Packed rows: a row, rows in memory, and the ids and random bits that rows and masks use. It imports only numpy."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, unique
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8, UInt32


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the tokens that rows and masks use; `all` holds every special id of the tokenizer."""

    cls: int
    sep: int
    mask: int
    pad: int
    unk: int | None
    all: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WordTable:
    """Whether a word starts at a token, by the kinds of its first and its last character (see data/words.py).

    `last` has one bit, that of the last character's kind, or none if the token goes on with the character before it. A
    word starts at a token if `starts_after` has the bit of the last character before it.
    """

    starts_after: UInt8[np.ndarray, " vocabulary"]
    last: UInt8[np.ndarray, " vocabulary"]

    def starts(self, input_ids: Integer[np.ndarray, " tokens"]) -> Bool[np.ndarray, " tokens"]:
        """Returns whether a word starts at each token."""
        last = self.last[input_ids]
        if not last.all():
            last = last[np.maximum.accumulate(np.where(last, np.arange(len(last)), 0))]
        starts_after = self.starts_after[input_ids]
        starts_after[1:] &= last[:-1]
        return starts_after != 0


@dataclass(frozen=True, slots=True)
class Maskable:
    """Which ids may be selected, as flags and as a list to draw replacements from, and the id of the mask token.

    `words` is only known where words or spans are masked.
    """

    is_maskable: Bool[np.ndarray, " vocabulary"]
    drawable: Int64[np.ndarray, " maskable"]
    mask: int
    words: WordTable | None = None


@dataclass(frozen=True, slots=True)
class TokenizedSentence:
    """The tokens of a sentence on their way from the tokenizer into a row.

    What else is known of each token is a field here, which `part` cuts and `joined` joins.
    """

    input_ids: UInt32[np.ndarray, " tokens"]
    is_word_start: Bool[np.ndarray, " tokens"] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def part(self, begin: int, end: int) -> Self:
        """Returns the tokens begin to end - 1."""
        is_word_start = None if self.is_word_start is None else self.is_word_start[begin:end]
        return replace(self, input_ids=self.input_ids[begin:end], is_word_start=is_word_start)


def joined(parts: Sequence[TokenizedSentence]) -> TokenizedSentence:
    """Returns the tokens of all parts; what is not known of every part is None."""
    words = [part.is_word_start for part in parts if part.is_word_start is not None]
    is_word_start = np.concatenate(words) if len(words) == len(parts) else None
    return TokenizedSentence(np.concatenate([part.input_ids for part in parts]), is_word_start)


@dataclass(frozen=True, slots=True)
class Row:
    """A row from packing to the model: tokens with special tokens, and the start and source of each document's part.

    Rows that were prepared with `pairs` have the start of each sentence and the low 32 bits of the hash of each
    document's text; those prepared with `words` have the tokens at which a word starts. Otherwise these are None.

    A new column is a field here, a line in `shard_schema` and a line in `collate`; whoever cuts rows or replaces tokens
    uses the two methods.
    """

    input_ids: Integer[np.ndarray, " tokens"]
    document_starts: Integer[np.ndarray, " documents"]
    document_sources: Integer[np.ndarray, " documents"]
    document_hashes: Integer[np.ndarray, " documents"] | None = None
    sentence_starts: Integer[np.ndarray, " sentences"] | None = None
    is_word_start: Bool[np.ndarray, " tokens"] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def document_lengths(self) -> tuple[int, ...]:
        """The tokens of each document: a separator counts with the document that it ends, [CLS] with the first."""
        return tuple(np.diff([0, *self.document_starts[1:], len(self)]).tolist())

    def document_offsets(self, positions: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Returns how many tokens after the start of its document in this row each position is."""
        starts = np.concatenate([[0], self.document_starts]).astype(np.int64)
        return positions - starts[np.searchsorted(starts, positions, side="right") - 1]

    def with_input_ids(self, input_ids: Integer[np.ndarray, " tokens"]) -> Self:
        """Returns the row with other tokens at the same positions."""
        return replace(self, input_ids=input_ids)

    def window(self, begin: int, end: int, special: SpecialTokens) -> Self:
        """Returns the positions begin to end - 1 between special tokens of their own, so that `begin` moves to 1."""
        first = max(0, int(np.searchsorted(self.document_starts, begin, side="right")) - 1)
        last = int(np.searchsorted(self.document_starts, end))
        hashes, sentences, words = self.document_hashes, self.sentence_starts, self.is_word_start
        if sentences is not None:
            of_first = max(0, int(np.searchsorted(sentences, begin, side="right")) - 1)
            sentences = sentences[of_first : int(np.searchsorted(sentences, end))]
        return replace(
            self,
            input_ids=np.concatenate([[special.cls], self.input_ids[begin:end], [special.sep]]),
            document_starts=np.maximum(self.document_starts[first:last], begin) - begin + 1,
            document_sources=self.document_sources[first:last],
            document_hashes=None if hashes is None else hashes[first:last],
            sentence_starts=None if sentences is None else np.maximum(sentences, begin) - begin + 1,
            is_word_start=None if words is None else np.concatenate([[False], words[begin:end], [False]]),
        )


@dataclass(frozen=True, slots=True)
class LooseRows:
    """Rows in memory that belong to no folder; their number in the tuple identifies them."""

    rows: tuple[Row, ...]
    rows_per_source: ClassVar[dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row_id: int) -> Row:
        return self.rows[row_id]

    @property
    def row_length(self) -> int:
        """Tokens of the longest row."""
        return max(map(len, self.rows))


@unique
class Stream(IntEnum):
    """What random bits are for: a word of Philox's counter, so that no two uses read the same bits."""

    MASKS = 0
    PAIRS = 1
    PARTNERS = 2
    ORDER = 3
    SHORT_ROWS = 4


THREAD_LOCAL = threading.local()


def philox_at(stream: Stream, key: tuple[int, int], number: int = 0) -> np.random.Philox:
    """Returns a generator of random bits that depend on these numbers only (Salmon et al. 2011).

    Each thread reuses one generator, since making one takes as long as a mask: draw all bits before the next call.
    """
    if not hasattr(THREAD_LOCAL, "philox"):
        THREAD_LOCAL.philox = np.random.Philox(0)
    state = {"counter": np.array((0, 0, stream, number), np.uint64), "key": np.array(key, np.uint64)}
    buffer = {"buffer": np.zeros(4, np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
    THREAD_LOCAL.philox.state = {"bit_generator": "Philox", "state": state, **buffer}
    return THREAD_LOCAL.philox
