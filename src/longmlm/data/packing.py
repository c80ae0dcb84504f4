"""Packing: tokenized documents become rows of whole sentences.

With room for 10 tokens in a row, sentences of 5 4 1 7 20 3 1 2 tokens give [5 4 1] [7] [10 of 20] [10 of 20] [3 1 2].

In rows for pairs, a share of the rows is closed early, at a length that is drawn when the row is opened. If the third
row draws 6, the same document gives [5 4 1] [7] [10 of 20] [10 of 20] [3 1 2] again, since a row always takes its first
sentence; if the last one draws 5, it becomes [3 1] [2].
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool

from longmlm.data.row import Row, SpecialTokens, Stream, TokenizedSentence, WordTable, joined, philox_at
from longmlm.settings.prepare import SPECIAL_TOKENS, PackingMode

MAX_CHARACTER_BYTES = 4  # in UTF-8
NUM_HASHES = 2**32  # how many values the hash of a document takes in a row
SENTENCES_OF_PAIR = 2


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    """The sentences of a document, in order and none empty, encoded when they are consumed."""

    sentences: Iterable[TokenizedSentence]
    source: int
    text_hash: int = 0


@dataclass(slots=True)
class OpenRow:
    """A row that is being filled: `length` counts its content and the separators between documents.

    It takes further sentences up to `target`, which is its `capacity` except in short rows. With `has_pairs`, it
    records its sentences and the hashes of its documents. With `words`, it records at which tokens a word starts: from
    its sentences, or else from this table. `is_within_character` is that of the vocabulary.
    """

    capacity: int
    special: SpecialTokens
    is_within_character: Bool[np.ndarray, " vocabulary"] | None = None
    has_pairs: bool = False
    short_row_share: float = 0.0
    words: WordTable | None = None
    pieces: list[TokenizedSentence] = field(default_factory=list)
    length: int = 0
    target: int = 0
    rows_of_document: int = 0
    starts: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    sentence_starts: list[int] = field(default_factory=list)

    def cut(self, sentence: TokenizedSentence, begin: int) -> int:
        """Returns the end of the part of a sentence, from `begin` on, that fills a row: between two characters.

        A row of bytes that are no UTF-8 is filled, and so is one that has less room than a character.
        """
        full = begin + self.capacity
        if self.is_within_character is None:
            return full
        ends = range(full, max(begin, full - MAX_CHARACTER_BYTES), -1)
        return next((end for end in ends if not self.is_within_character[sentence.input_ids[end]]), full)

    def add(self, sentence: TokenizedSentence, length: int, document: TokenizedDocument, opens_document: bool) -> None:
        """Appends a sentence of a document, or a part of one, with its number of tokens."""
        if opens_document:
            self.rows_of_document = 0
        if not self.length:
            self.target = self._drawn_target(document)
        if opens_document and self.length:
            self.pieces.append(_special(self.special.sep))
            self.length += 1
        if opens_document or not self.length:
            self.starts.append(1 + self.length)
            self.sources.append(document.source)
            self.hashes.append(document.text_hash % NUM_HASHES)
        self.sentence_starts.append(1 + self.length)
        self.pieces.append(sentence)
        self.length += length

    def _drawn_target(self, document: TokenizedDocument) -> int:
        """Returns the length up to which a new row is filled: a function of its document and of its number there."""
        number, self.rows_of_document = self.rows_of_document, self.rows_of_document + 1
        if not self.short_row_share:
            return self.capacity
        philox = philox_at(Stream.SHORT_ROWS, (document.text_hash, number))
        is_short, length = (int(word) >> 11 for word in philox.random_raw(2))
        return 2 + length % (self.capacity - 1) if is_short * 2.0**-53 < self.short_row_share else self.capacity

    def close(self) -> Row:
        """Returns the row between its special tokens, and starts an empty one."""
        content = joined([_special(self.special.cls), *self.pieces, _special(self.special.sep)])
        is_word_start = content.is_word_start
        if self.words and is_word_start is None:
            is_word_start = self.words.starts(content.input_ids)
        row = Row(
            content.input_ids,
            np.array(self.starts, dtype=np.int32),
            np.array(self.sources, dtype=np.uint16),
            np.array(self.hashes, dtype=np.uint32) if self.has_pairs else None,
            np.array(self.sentence_starts, dtype=np.int32) if self.has_pairs else None,
            is_word_start=is_word_start,
        )
        self.pieces, self.length, self.starts, self.sources = [], 0, [], []
        self.hashes, self.sentence_starts = [], []
        return row


def _special(token_id: int) -> TokenizedSentence:
    return TokenizedSentence(np.array([token_id], dtype=np.uint32), np.zeros(1, dtype=bool))


def pack(
    documents: Iterable[TokenizedDocument],
    row_length: int,
    special: SpecialTokens,
    mode: PackingMode,
    is_within_character: Bool[np.ndarray, " vocabulary"] | None = None,
) -> Iterator[Row]:
    """Yields rows of at most `row_length` tokens: whole sentences, in order, until the next would not fit.

    FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2): a row may cross documents, one separator between them.
    No row holds documents of two sources.
    A sentence longer than a row closes the open row and is cut into full rows; its remainder opens the next row. With
    `is_within_character` it is cut between characters, so that up to three tokens less fill a row.
    With doc-sentences, the end of a document closes its last row; with sentence-pair, so does a second sentence.
    """
    row = OpenRow(row_length - SPECIAL_TOKENS, special, is_within_character)
    for document in documents:
        yield from pack_document(row, document, mode)
    if row.length:
        yield row.close()


def pack_document(row: OpenRow, document: TokenizedDocument, mode: PackingMode) -> Iterator[Row]:
    """Appends the document's sentences to the open row, and yields each row that becomes full."""
    if row.length and row.sources[-1] != document.source:
        yield row.close()
    opens_document = True
    for sentence in document.sentences:
        length = len(sentence)
        is_full = mode == "sentence-pair" and len(row.sentence_starts) == SENTENCES_OF_PAIR
        more = opens_document + length  # with the separator before a document
        if row.length and (is_full or row.length + more > row.target):
            yield row.close()
        begin = 0
        while begin + row.capacity < length:
            end = row.cut(sentence, begin)
            row.add(sentence.part(begin, end), end - begin, document, opens_document)
            opens_document = False
            yield row.close()
            begin = end
        row.add(sentence.part(begin, length) if begin else sentence, length - begin, document, opens_document)
        opens_document = False
        if begin and row.has_pairs:  # no segment of a pair begins within a sentence
            yield row.close()
    if mode != "full-sentences" and row.length:
        yield row.close()
