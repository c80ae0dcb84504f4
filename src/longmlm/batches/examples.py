"""Documents as a model reads them: token ids of one input, or of several chunks, and what is to be predicted.

With a length of 6, an input holds 4 tokens of the document, between both special tokens. Of a document of 10 tokens:

    first       0 1 2 3
    middle      3 4 5 6
    last        6 7 8 9
    chunks      0 1 2 3 | 4 5 6 7 | 8 9
    windows     0 1 2 3 | 2 3 4 5 | 4 5 6 7 | 6 7 8 9      chunks, for labelling
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from jaxtyping import Float, Int64
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.downstream import LabelledSpan
from longmlm.data.labelled import LabelledCorpus, LabelledDocument
from longmlm.data.row import SpecialTokens
from longmlm.data.vocabulary import cached_vocabulary
from longmlm.errors import DataError
from longmlm.settings.downstream import HEAD_TOKENS, Reading, TaskKind

IGNORED = -100  # the target of a token that is not labelled, such as a special token
DOCUMENTS_AT_ONCE = 64  # for the tokenizer, whose encodings take far more memory than token ids

Tokens = Int64[np.ndarray, "_"]  # the axis has no name, since lists hold arrays of different lengths


@dataclass(frozen=True, slots=True)
class Example:
    """A document of a corpus, `document` being its number there; `num_tokens` is its length, read or not.

    `inputs` have special tokens: one, or one per chunk; of a pair, those of the first text come first, `num_first` in
    number. `num_tokens` counts no special tokens. `target` is, for classification, a class (of shape ()) or a 0 or 1
    for each class; for labelling, a class for each token of all inputs; for similarity, the score. For labelling,
    `offsets` are the characters of each of the document's `num_tokens` tokens, read or not, without white space around
    them, and `token_indices` say which of these each token of all inputs is: -1 for a special token.
    """

    document: int
    inputs: tuple[Int64[np.ndarray, " _"], ...]  # each of its own length
    target: Int64[np.ndarray, "..."] | Float[np.ndarray, "..."]
    num_tokens: int
    offsets: Int64[np.ndarray, "num_tokens 2"] | None = None
    token_indices: Int64[np.ndarray, " tokens"] | None = None
    num_first: int = 0

    @property
    def longest(self) -> int:
        """The number of tokens of the longest input."""
        return max(map(len, self.inputs))

    def __len__(self) -> int:
        """Returns the number of tokens that the model reads."""
        return sum(map(len, self.inputs))


def bio_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the classes of tokens: outside of spans, and for each label at the beginning of a span and inside."""
    return ("O", *(f"{prefix}-{label}" for label in labels for prefix in "BI"))


def examples_of(
    corpus: LabelledCorpus, task_kind: TaskKind, tokenizer: PreTrainedTokenizerBase, reads: Reading, length: int
) -> tuple[Example, ...]:
    """Returns every document of a corpus as inputs of at most `length` tokens; a shorter document is read whole.

    Chunks are consecutive, and the last one may be short; for labelling they overlap by half. Raises DataError for a
    tokenizer without the usual special tokens at their usual places, and for a length too short for `reads`.
    """
    if length <= (least := HEAD_TOKENS + 2 if reads == "head-tail" else 2):
        raise DataError(f'reads = "{reads}" needs a length above {least} tokens, not {length}')
    name = tokenizer.name_or_path or type(tokenizer).__name__
    vocabulary, _ = cached_vocabulary(tokenizer)
    if tokenizer("a", verbose=False)["input_ids"][-1] == vocabulary.special.cls:  # as in XLNet
        raise DataError(f"{name} puts the token that its head reads at the end: take a model that puts it first")
    reader = _Reader(vocabulary.special, reads, length - 2, overlaps=task_kind == "labelling")
    encodings = _encodings(vocabulary.tokenizer, [document.text for document in corpus.documents])
    numbered = enumerate(zip(corpus.documents, encodings, strict=True))
    classes = {label: index for index, label in enumerate(corpus.labels)}
    match task_kind:
        case "classification":
            return tuple(
                Example(number, reader.inputs(encoding), _target(corpus, classes, document), len(encoding))
                for number, (document, encoding) in numbered
            )
        case "labelling":
            return tuple(
                _labelling_example(reader, number, document, encoding, classes)
                for number, (document, encoding) in numbered
            )
        case "similarity":
            others = _encodings(vocabulary.tokenizer, [document.second_text or "" for document in corpus.documents])
            return tuple(
                _pair_example(reader, number, (encoding, other), document.score or 0.0)
                for (number, (document, encoding)), other in zip(numbered, others, strict=True)
            )
        case _:
            assert_never(task_kind)


def characters_read(
    text: str, tokenizer: PreTrainedTokenizerBase, reads: Reading, length: int
) -> Int64[np.ndarray, "tokens 2"]:
    """Returns start and end of each token of a document that `examples_of` reads."""
    vocabulary, _ = cached_vocabulary(tokenizer)
    [encoding] = _encodings(vocabulary.tokenizer, [text])
    read = _Reader(vocabulary.special, reads, length - 2, overlaps=False).indices(len(encoding))
    return np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[np.unique(np.concatenate(read))]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Which tokens of a document are read: at most `room` in one input."""

    special: SpecialTokens
    reads: Reading
    room: int
    overlaps: bool

    def indices(self, num_tokens: int) -> list[Tokens]:
        """Returns the indices of the tokens in each input."""
        tokens, room = np.arange(num_tokens), self.room
        if num_tokens <= room:
            return [tokens]
        match self.reads:
            case "first":
                return [tokens[:room]]
            case "middle":
                begin = (num_tokens - room) // 2
                return [tokens[begin : begin + room]]
            case "last":
                return [tokens[-room:]]
            case "head-tail":
                return [np.concatenate([tokens[:HEAD_TOKENS], tokens[HEAD_TOKENS - room :]])]
            case "chunks":
                stride = max(1, room // 2) if self.overlaps else room
                return [tokens[begin : begin + room] for begin in range(0, num_tokens - room + stride, stride)]
            case _:
                assert_never(self.reads)

    def inputs(self, encoding: Encoding) -> tuple[Tokens, ...]:
        """Returns the ids of the tokens in each input, between both special tokens."""
        ids, special = np.array(encoding.ids, dtype=np.int64), self.special
        return tuple(_between(special.cls, ids[read], special.sep) for read in self.indices(len(ids)))


def _between(first: int, values: Tokens, last: int) -> Tokens:
    return np.concatenate([[first], values, [last]]).astype(np.int64)


def _encodings(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Encoding]:
    tokenizer.encode_special_tokens = True
    for first in range(0, len(texts), DOCUMENTS_AT_ONCE):
        yield from tokenizer.encode_batch(texts[first : first + DOCUMENTS_AT_ONCE], add_special_tokens=False)


def _target(corpus: LabelledCorpus, classes: dict[str, int], document: LabelledDocument) -> np.ndarray:
    if not corpus.is_multilabel:
        return np.array(classes[document.labels[0]])
    target = np.zeros(len(classes), dtype=np.float32)
    target[[classes[label] for label in document.labels]] = 1
    return target


def _pair_example(reader: _Reader, number: int, pair: tuple[Encoding, Encoding], score: float) -> Example:
    first, second = map(reader.inputs, pair)
    target = np.array(score, dtype=np.float32)
    return Example(number, (*first, *second), target, sum(map(len, pair)), num_first=len(first))


def _labelling_example(
    reader: _Reader, number: int, document: LabelledDocument, encoding: Encoding, classes: dict[str, int]
) -> Example:
    offsets = _characters(document.text, encoding)
    targets = _bio_targets(document.spans, classes, offsets)
    read = reader.indices(len(encoding))
    return Example(
        number,
        reader.inputs(encoding),
        np.concatenate([_between(IGNORED, targets[tokens], IGNORED) for tokens in read]),
        len(encoding),
        offsets,
        np.concatenate([_between(-1, tokens, -1) for tokens in read]),
    )


def _characters(text: str, encoding: Encoding) -> Int64[np.ndarray, "tokens 2"]:
    """Returns the characters of each token, made non-decreasing, without the white space that a token may begin with.

    A token of nothing but white space has none. Characters that the tokenizer drops, such as accents, belong to the
    token before them in their word, or else to the one after them: uncased BERT reads "José" with a combining accent as
    one token without it, which is given all five characters.
    """
    offsets = np.zeros((len(encoding), 2), dtype=np.int64)
    for row, (start, end) in zip(offsets, encoding.offsets, strict=True):
        part = text[start:end]
        row[:] = end - len(part.lstrip()), max(end - len(part.lstrip()), start + len(part.rstrip()))
    offsets = np.maximum.accumulate(offsets)
    with_text = np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    starts, ends = offsets[with_text, 0], offsets[with_text, 1]
    for index in np.flatnonzero(np.append(starts[1:], len(text)) > ends):
        limit = starts[index + 1] if index + 1 < len(starts) else len(text)
        while ends[index] < limit and not text[ends[index]].isspace():
            ends[index] += 1
    for index in np.flatnonzero(starts > np.append(0, ends[:-1])):
        limit = ends[index - 1] if index else 0
        while starts[index] > limit and not text[starts[index] - 1].isspace():
            starts[index] -= 1
    offsets[with_text] = np.stack([starts, ends], axis=1)
    return offsets


def _bio_targets(
    spans: Sequence[LabelledSpan], classes: dict[str, int], offsets: Int64[np.ndarray, "tokens 2"]
) -> Int64[np.ndarray, " tokens"]:
    """Returns the class of each token; a span has all tokens that it overlaps in characters.

    A token that overlaps two spans belongs to the first, unless the second would have no token without it and the first
    has others. Spans that no token overlaps are lost.
    """
    targets = np.zeros(len(offsets), dtype=np.int64)
    begin = end = 0  # the tokens of the span before
    for span in sorted(spans, key=lambda span: span.start):
        first = int(np.searchsorted(offsets[:, 1], span.start, side="right"))
        following = int(np.searchsorted(offsets[:, 0], span.end, side="left"))
        first = max(first, min(end, following - 1))
        if first < following and (first >= end or begin < first):
            begin, end = first, following
            targets[begin] = 1 + 2 * classes[span.label]
            targets[begin + 1 : end] = 2 + 2 * classes[span.label]
    return targets
