"""Sentence boundaries of a text, by the rules of its language."""

import re
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import sentencex
from jaxtyping import Int64

from longmlm.data.texts import Text

PIECE_CHARACTERS = 8_000  # sentencex is quadratic in the length of quoted text without a space
MAX_MARKS = 1_000
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")  # sentencex panics on some of these before a full stop
# sentencex knows few of the closing marks of Chinese and Japanese, and no sequences of them.
CLOSING_MARKS = re.compile(r"(?<=\S)[”’」』）】》〉〕］｝〗)\]]+")


def sentence_starts(text: Text, language: str) -> Int64[np.ndarray, " sentences"]:
    """Returns the character offset at which each sentence of `text` starts; the first is 0.

    A sentence extends to the start of the next, so no character is lost: white space between two sentences belongs to
    the second, closing marks belong to the first. The rules are those of sentencex, which falls back to a related
    language or to English where it has none.
    """
    return np.fromiter(_starts(text, language), dtype=np.int64)


def _starts(text: Text, language: str) -> Iterator[int]:
    yield 0
    waiting = None  # held back, since the end of the last sentence starts no other
    for previous, start in pairwise(chain(_boundaries(text, language), [len(text)])):
        between = text[previous:start]
        if between.strip():
            if waiting is not None:
                yield waiting
            waiting = previous + len(between.rstrip())


def _boundaries(text: Text, language: str) -> Iterator[int]:
    """Yields the offsets at which sentencex starts a sentence, moved past closing marks."""
    for begin, end in pairwise(chain([0], _cuts(text))):
        for boundary in sentencex.get_sentence_boundaries(language, WIDE_SPACE.sub(" ", text[begin:end])):
            start = begin + boundary["start_index"]
            before = max(0, start - 1)
            closed = CLOSING_MARKS.match(text[before : start + MAX_MARKS], start - before)
            yield before + closed.end() if closed else start


def _cuts(text: Text) -> Iterator[int]:
    """Yields the ends of the pieces that sentencex is given: after a line, else a sentence, else a word."""
    end = 0
    while end < len(text):
        least = end + PIECE_CHARACTERS
        window = text[least : least + PIECE_CHARACTERS]
        line = window.find("\n") + 1
        mark = max(window.rfind(mark) for mark in ("。", "！", "？", ". ", "! ", "? ")) + 1
        space = window.rfind(" ") + 1
        end = min(least + (line or mark or space or PIECE_CHARACTERS), len(text))
        yield end


def split_sentences(text: str, language: str) -> list[str]:
    """Returns the sentences of `text`; joined, they are `text`."""
    ends = [*sentence_starts(text, language)[1:].tolist(), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
