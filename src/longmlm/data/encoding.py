"""Encoding of texts as tokens, by sentence: always the tokens of the text encoded whole, whatever its length.

A huge text is encoded in pieces. Encoding a piece alone would change tokens at its ends, so each piece gets context on
both sides, and a cut holds only where both encodings agree on the tokens around it. With pieces of 10 characters and a
context of 4, the text "the cat sat on the mat again" is cut after "the cat sat":

    encoded for the first piece     the| cat| sat| on|...     keeps tokens that start before offset 11
    encoded for the second piece    ... sat| on| the| mat|... keeps those from offset 11 on

Both have " sat" up to offset 11 and " on" from there, so the cut holds. Otherwise the two pieces would become one.

A tokenizer that need not split at a space, or that may remove whatever stands between two quotation marks, gets each
text whole: what decides its tokens may be far from them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise

import numpy as np
from jaxtyping import Int64, UInt32
from tokenizers import Encoding, Tokenizer

from longmlm.data.corpus import Document
from longmlm.data.definitions import splits_at_spaces
from longmlm.data.fast_encoding import (
    MAX_CHARACTERS,
    MakeEncoder,
    failures_of,
    fast_encoder,
    hostile_texts,
    is_recorded,
    record_of,
    write_record,
)
from longmlm.data.row import TokenizedSentence, joined
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary
from longmlm.data.words import Segmenter
from longmlm.errors import EncoderError
from longmlm.processes import one_ahead
from longmlm.settings.prepare import is_segmented

# The axes have no names, since lists hold arrays of different lengths.
Tokens = UInt32[np.ndarray, "_"]
Starts = Int64[np.ndarray, "_"]  # the offset at which each sentence starts
Offsets = Int64[np.ndarray, "_ 2"]  # the characters at which each token starts and ends

PIECE_CHARACTERS = 200_000
CONTEXT_CHARACTERS = 1_000
COMPARED_SHARE = 128  # one character in so many is encoded twice, to compare a fast encoder with tokenizers
WORD_END = re.compile(r"(?<=\S)[ \t\n\r]")
SENTENCE_END = re.compile(r"(?<=[。！？])(?=\w)")


def tokenized(
    vocabulary: Vocabulary,
    languages: Sequence[str],
    documents: Iterable[Document],
    make_encoder: MakeEncoder | None = None,
    segmenter: Segmenter | None = None,
) -> Iterator[tuple[Document, Iterable[TokenizedSentence]]]:
    """Yields each document with the tokens of its sentences; neighbouring short documents are encoded together.

    `languages` are those of the sources, by number. A fast encoder is compared with tokenizers on the first document
    and on a small share of the others; raises EncoderError where they differ. It gives no offsets, so it is not
    used with a segmenter, which finds the words of texts in Chinese and Japanese.
    """
    encoder = None
    with suppress(ImportError):  # not every machine of a cluster may have the library
        encoder = make_encoder() if make_encoder and not segmenter else None
    if encoder is None:
        yield from _tokenized(vocabulary.tokenizer, languages, documents, segmenter)
        return
    num_characters = num_compared = 0
    for batch in batches(documents):
        texts = [document.text for document in batch]
        starts = [sentence_starts(document.text, languages[document.source]) for document in batch]
        with failures_of(encoder.library):
            known = encoder.sentences(texts, starts) if len(texts[0]) <= MAX_CHARACTERS else [None]
        for document, own_starts, sentences in zip(batch, starts, known, strict=True):
            num_characters += len(document.text)
            is_compared = not num_compared or (num_compared + len(document.text)) * COMPARED_SHARE <= num_characters
            if sentences is None or is_compared:
                num_compared += len(document.text)
                expected = encode(vocabulary.tokenizer, document.text, own_starts)
                if sentences is None:
                    yield document, expected
                    continue
                if not _is_same(sentences, expected):
                    raise EncoderError(f"{encoder.library} and tokenizers differ on {document.origin}")
            yield document, sentences


def exact_encoder(tokenizer: Tokenizer) -> MakeEncoder | None:
    """Returns what makes a fast encoder; None if there is none, or its library is not installed.

    Raises EncoderError if it cannot be made, or gives other tokens than the tokenizer for one of the hostile texts. If
    none differs, this is recorded, and the texts are not encoded again.
    """
    if (make_encoder := fast_encoder(tokenizer)) is None:
        return None
    texts, whole = hostile_texts(), np.zeros(1, dtype=np.int64)
    try:
        with failures_of("the fast encoder"):
            encoder = make_encoder()
            record = record_of(tokenizer, encoder.library, texts)
            if record and is_recorded(record):
                return make_encoder
            known = encoder.sentences(texts, [whole] * len(texts))
    except ImportError:
        return None
    for text, found in zip(texts, known, strict=True):
        if found is not None and not _is_same(found, encode(tokenizer, text, whole)):
            raise EncoderError(f"{encoder.library} and tokenizers differ on {text[:20]!r}")
    if record:
        write_record(record)
    return make_encoder


def library_of(tokenizer: Tokenizer) -> str:
    """Returns the name of the library that prepare encodes with if its tokens turn out to be those of tokenizers."""
    with suppress(ImportError, EncoderError), failures_of("the fast encoder"):
        if make_encoder := fast_encoder(tokenizer):
            return make_encoder().library
    return "tokenizers"


def _is_same(found: Sequence[TokenizedSentence], expected: Iterable[TokenizedSentence]) -> bool:
    known = list(expected)
    return len(found) == len(known) and all(
        np.array_equal(one.input_ids, other.input_ids) for one, other in zip(found, known, strict=True)
    )


def _tokenized(
    tokenizer: Tokenizer, languages: Sequence[str], documents: Iterable[Document], segmenter: Segmenter | None
) -> Iterator[tuple[Document, Iterable[TokenizedSentence]]]:
    """Yields documents as `tokenized` does. While the caller uses one batch of documents, a thread encodes the next."""

    def encoded(batch: list[Document]) -> list[Encoding]:
        return encode_batch(tokenizer, [document.text for document in batch]) if len(batch) > 1 else []

    for batch, encodings in one_ahead(encoded, batches(documents)):
        for number, document in enumerate(batch):
            language = languages[document.source]
            starts, own = sentence_starts(document.text, language), segmenter if is_segmented(language) else None
            if len(batch) == 1:
                yield document, encode(tokenizer, document.text, starts, own)
            else:
                yield document, sentences_of(encodings[number], starts, document.text, own)


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yields the documents in lists; one of several documents has at most PIECE_CHARACTERS."""
    batch: list[Document] = []
    num_characters = 0
    for document in documents:
        if batch and num_characters + len(document.text) > PIECE_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
        batch.append(document)
        num_characters += len(document.text)
    if batch:
        yield batch


def encode(
    tokenizer: Tokenizer, text: str, starts: Starts, segmenter: Segmenter | None = None
) -> Iterator[TokenizedSentence]:
    """Yields the tokens of each sentence that has any: those of the text encoded whole, cut at the offsets `starts`."""
    _read_special_tokens_as_text(tokenizer)
    first, parts, begin = 1, [], 0
    for ids, offsets, cut in _encode_piecewise(tokenizer, text):
        tokens, begin = _with_word_starts(ids, offsets - begin, text[begin:cut], segmenter), cut
        following = int(np.searchsorted(starts, cut, side="right"))
        *ended, unfinished = _split(tokens, offsets, starts[first:following])
        for part in ended:
            if len(sentence := joined([*parts, part])):
                yield sentence
            parts = []
        parts.append(unfinished)
        first = max(first, following)
    if len(sentence := joined(parts)):
        yield sentence


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Returns the encodings of many short texts, in a fraction of the time that `encode` takes for each."""
    _read_special_tokens_as_text(tokenizer)
    return tokenizer.encode_batch(texts, add_special_tokens=False)


def sentences_of(
    encoding: Encoding, starts: Starts, text: str = "", segmenter: Segmenter | None = None
) -> list[TokenizedSentence]:
    """Returns the tokens of each sentence that has any, as `encode` does; a segmenter needs the text."""
    ids = np.array(encoding.ids, dtype=np.uint32)
    if len(starts) == 1 and not segmenter:
        return [TokenizedSentence(ids)] if len(ids) else []
    offsets = _offsets(encoding)
    return [part for part in _split(_with_word_starts(ids, offsets, text, segmenter), offsets, starts[1:]) if len(part)]


def _with_word_starts(ids: Tokens, offsets: Offsets, text: str, segmenter: Segmenter | None) -> TokenizedSentence:
    """Returns the tokens of a text and, with a segmenter, at which of them a word starts."""
    is_word_start = segmenter.starts(text, np.minimum(offsets, len(text))) if segmenter else None
    return TokenizedSentence(ids, is_word_start)


def _read_special_tokens_as_text(tokenizer: Tokenizer) -> None:
    if not tokenizer.encode_special_tokens:  # a copy or a pickle of a tokenizer loses it; another thread may encode
        tokenizer.encode_special_tokens = True


def _split(tokens: TokenizedSentence, offsets: Offsets, starts: Starts) -> list[TokenizedSentence]:
    cuts = [0, *np.searchsorted(offsets[:, 0], starts).tolist(), len(tokens)]
    return [tokens.part(begin, end) for begin, end in pairwise(cuts)]


def _offsets(encoding: Encoding) -> Offsets:
    """Returns the characters at which each token starts, made non-decreasing, and ends."""
    offsets = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64, count=2 * len(encoding.ids))
    offsets = offsets.reshape(-1, 2)
    np.maximum.accumulate(offsets[:, 0], out=offsets[:, 0])
    return offsets


def _encode_piecewise(tokenizer: Tokenizer, text: str) -> Iterator[tuple[Tokens, Offsets, int]]:
    """Yields ids, character offsets and the end of each piece; together they are those of one encoding."""
    is_cut = len(text) > PIECE_CHARACTERS and splits_at_spaces(tokenizer)
    cuts = _cuts(text) if is_cut else iter((len(text),))
    begin, cut = 0, next(cuts)
    ids, offsets = _encode_span(tokenizer, text, begin, cut)
    for end in cuts:
        next_ids, next_offsets = _encode_span(tokenizer, text, cut, end)
        if _agree((ids, offsets), (next_ids, next_offsets), cut):
            is_inside = (begin <= offsets[:, 0]) & (offsets[:, 0] < cut)
            yield ids[is_inside], offsets[is_inside], cut
            begin, ids, offsets = cut, next_ids, next_offsets
        else:
            ids, offsets = _encode_span(tokenizer, text, begin, end)
        cut = end
    is_inside = begin <= offsets[:, 0]
    yield ids[is_inside], offsets[is_inside], cut


def _cuts(text: str) -> Iterator[int]:
    """Yields the offsets at which pieces end; the last is the end of the text.

    A piece ends at white space if there is any, else at the end of a sentence, never inside a word: Unigram weighs a
    word from end to end, so two encodings may agree around a cut in it and both differ from that of the whole text.
    """
    cut, last = 0, len(text) - PIECE_CHARACTERS // 2
    while border := _border(text, cut + PIECE_CHARACTERS, last):
        cut = border
        yield cut
    yield len(text)


def _border(text: str, first: int, last: int) -> int | None:
    """Returns the first offset from `first` to `last` at which a piece may end; None if there is none."""
    for end in (min(first + PIECE_CHARACTERS, last), last):
        window = text[first - 1 : max(first, end)]
        for pattern in (WORD_END, SENTENCE_END):
            if match := pattern.search(window, 1):
                return first - 1 + match.start()
    return None


def _encode_span(tokenizer: Tokenizer, text: str, begin: int, end: int) -> tuple[Tokens, Offsets]:
    first = max(0, begin - CONTEXT_CHARACTERS)
    encoding = tokenizer.encode(text[first : end + CONTEXT_CHARACTERS], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.uint32), _offsets(encoding) + first


def _agree(left: tuple[Tokens, Offsets], right: tuple[Tokens, Offsets], cut: int) -> bool:
    margin = CONTEXT_CHARACTERS // 2
    near = [(cut - margin <= starts) & (starts < cut + margin) for starts in (left[1][:, 0], right[1][:, 0])]
    (ids, starts), others = ((one[0][part], one[1][part, 0]) for one, part in zip((left, right), near, strict=True))
    both_sides = bool(len(starts) and starts[0] < cut <= starts[-1])
    return both_sides and np.array_equal(ids, others[0]) and np.array_equal(starts, others[1])
