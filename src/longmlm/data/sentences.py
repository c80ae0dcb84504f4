"""Text to sentence borders."""

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import sentencex
from jaxtyping import Int64

# sentencex knows few of the closing marks of Chinese and Japanese, nor that several may follow each other.
PIECE_CHARACTERS = 8_000  # it is quadratic in the length of quoted text without a space
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")  # it panics on some of these before a full stop
CLOSING_MARKS = re.compile(r"(?<=\S)[”’」』）】》〉〕］｝〗)\]]+")


def sentence_starts(text: str, language: str) -> Int64[np.ndarray, " sentences"]:
    """Returns the character offset at which each sentence of `text` begins; the first is 0.

    A sentence runs to the next one's start, so no character is lost; white space between two sentences opens the
    second, and closing marks end the first. The rules are sentencex's; a language that it does not know falls back to
    a near one, or to English.
    """
    starts = [
        begin + boundary["start_index"]
        for begin, end in pairwise([0, *_cuts(text)])
        for boundary in sentencex.get_sentence_boundaries(language, WIDE_SPACE.sub(" ", text[begin:end]))
    ]
    starts = [closed.end() if (closed := CLOSING_MARKS.match(text, start)) else start for start in starts]
    opened = [0]
    for previous, start in pairwise([*starts, len(text)]):
        between = text[previous:start]
        if between.strip():
            opened.append(previous + len(between.rstrip()))
    return np.array(opened[:-1] if len(opened) > 1 else opened, dtype=np.int64)


def _cuts(text: str) -> Iterator[int]:
    """Yields where the pieces that sentencex is given end: after a line, else a sentence, else a word."""
    end = 0
    while end < len(text):
        least, most = end + PIECE_CHARACTERS, end + 2 * PIECE_CHARACTERS
        line = text.find("\n", least, most) + 1
        mark = max(text.rfind(mark, least, most) for mark in ("。", "！", "？", ". ", "! ", "? ")) + 1
        space = text.rfind(" ", least, most) + 1
        end = min(line or mark or space or most, len(text))
        yield end


def split_sentences(text: str, language: str) -> list[str]:
    """Returns the sentences of `text`, which joined give `text` again."""
    ends = [*sentence_starts(text, language)[1:].tolist(), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
