"""Text to sentence borders."""

import re
from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import sentencex
from jaxtyping import Int64

from longmlm.data.texts import Text

# sentencex knows few of the closing marks of Chinese and Japanese, nor that several may follow each other.
PIECE_CHARACTERS = 8_000  # it is quadratic in the length of quoted text without a space
MOST_MARKS = 1_000
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")  # it panics on some of these before a full stop
CLOSING_MARKS = re.compile(r"(?<=\S)[”’」』）】》〉〕］｝〗)\]]+")


def sentence_starts(text: Text, language: str) -> Int64[np.ndarray, " sentences"]:
    """Returns the character offset at which each sentence of `text` begins; the first is 0.

    A sentence runs to the next one's start, so no character is lost; white space between two sentences opens the
    second, and closing marks end the first. The rules are sentencex's; a language for which it has none falls back to
    a near one, or to English.
    """
    return np.fromiter(_opened(text, language), dtype=np.int64)


def _opened(text: Text, language: str) -> Iterator[int]:
    yield 0
    waiting = None  # the last end of a sentence opens no other
    for previous, start in pairwise(chain(_found(text, language), [len(text)])):
        between = text[previous:start]
        if between.strip():
            if waiting is not None:
                yield waiting
            waiting = previous + len(between.rstrip())


def _found(text: Text, language: str) -> Iterator[int]:
    """Yields where sentencex begins a sentence, moved behind closing marks."""
    for begin, end in pairwise(chain([0], _cuts(text))):
        for boundary in sentencex.get_sentence_boundaries(language, WIDE_SPACE.sub(" ", text[begin:end])):
            start = begin + boundary["start_index"]
            before = max(0, start - 1)
            closed = CLOSING_MARKS.match(text[before : start + MOST_MARKS], start - before)
            yield before + closed.end() if closed else start


def _cuts(text: Text) -> Iterator[int]:
    """Yields where the pieces that sentencex is given end: after a line, else a sentence, else a word."""
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
    """Returns the sentences of `text`, which joined give `text` again."""
    ends = [*sentence_starts(text, language)[1:].tolist(), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
