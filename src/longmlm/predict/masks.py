"""Finds the parts of a text to predict: the masks that are written in it, or a word."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from longmlm.data.vocabulary import UNSPACED
from longmlm.errors import DataError, counted
from longmlm.escaping import read_user_text

MASK_SPELLINGS = ("[MASK]", "<mask>")  # mask tokens of BERT and RoBERTa
SPACED_LETTER = rf"[^\W{UNSPACED}]"  # a letter of a script with spaces between words
SHOWN_CHARACTERS = 60  # of the text on each side of a mask


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A text, and the start and end (exclusive) of each part to predict, in order.

    The parts are masks that are written in the text or, if `word` is given, one occurrence of this word.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    word: str | None = None
    note: str = ""

    def with_masks(self, mask_token: str) -> str:
        """Returns the text with a model's own mask token in place of each written one."""
        parts, end = [], 0
        for start, following in self.spans:
            parts += [self.text[end:start], mask_token]
            end = following
        return "".join([*parts, self.text[end:]])

    def surroundings(self, index: int) -> str:
        """Returns a mask with the text around it in one line."""
        start, end = self.spans[index]
        first, last = max(0, start - SHOWN_CHARACTERS), min(len(self.text), end + SHOWN_CHARACTERS)
        line = " ".join(f"{self.text[first:start]}{MASK_SPELLINGS[0]}{self.text[end:last]}".split())
        return f"{'…' * (first > 0)}{line}{'…' * (last < len(self.text))}"


def read_text(text: str) -> str:
    """Returns the text of a file if `text` is its path, else `text`; raises DataError if the file has no text."""
    if not _is_path(text):
        return text
    if Path(text).is_dir():
        raise DataError(f"{text} is a folder: name a text file, or give the text in quotes")
    try:
        content = read_user_text(text, "utf-8-sig")
    except UnicodeDecodeError:
        content = "\0"
    except OSError as error:
        raise DataError(f"{text} cannot be read ({error.strerror}): name a file, or give the text in quotes") from None
    if "\0" in content:
        raise DataError(f"{text} is not a text file in UTF-8: name one, or give the text in quotes")
    if not content.strip():
        raise DataError(f"{text} is empty: name a file with text, or give the text in quotes")
    return content


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # it is too long for a path
        return False


def masked_text(given: str, word: str | None, occurrence: int, mask_tokens: Collection[str]) -> MaskedText:
    """Returns the text `given`, or that of the file `given`, with its written masks or the word to mask.

    `mask_tokens` are those of the models. Raises DataError for a text that has no mask, that does not have the word, or
    that has a mask although a word is given.
    """
    text = read_text(given)
    pattern = "|".join(map(re.escape, sorted({*MASK_SPELLINGS, *mask_tokens}, key=len, reverse=True)))
    written = tuple(match.span() for match in re.finditer(pattern, text))
    if word is None:
        if not written:
            raise DataError(
                f"{_name_of(given)} has no mask: write [MASK] or <mask> for a token, or mask a word with --mask WORD"
            )
        return MaskedText(text, written)
    if written:
        raise DataError(f"the text already has a mask, {text[slice(*written[0])]}: remove it, or --mask")
    spans = [match.span() for match in re.finditer(_whole_word(word), text)]
    if not spans:
        raise DataError(f"{_name_of(given)} does not have the word {word!r}{_reason(word, text)}")
    if occurrence > len(spans):
        raise DataError(f"the text has {word!r} {counted(len(spans), 'time')}: set occurrence to at most {len(spans)}")
    note = ""
    if len(spans) > 1:
        times = f"{word!r} occurs {counted(len(spans), 'time')} in the text"
        note = f"{times}: occurrence {occurrence} is masked, the others stay visible; --occurrence chooses another one"
    return MaskedText(text, (spans[occurrence - 1],), word, note)


def _name_of(given: str) -> str:
    """Returns how an error names the text; a text that looks like a path may have been meant as one."""
    if _is_path(given):
        return given
    is_like_path = not re.search(r"\s", given) and re.search(r"/|\.\w+$", given)
    return f"{given}: there is no such file, and the text" if is_like_path else "the text"


def _whole_word(word: str) -> str:
    """Returns a pattern that matches whole words only, unless the script has no spaces."""
    before, after = (re.match(SPACED_LETTER, character) for character in (word[0], word[-1]))
    return f"{f'(?<!{SPACED_LETTER})' if before else ''}{re.escape(word)}{f'(?!{SPACED_LETTER})' if after else ''}"


def _reason(word: str, text: str) -> str:
    """Returns what the text has instead of the word: the word in other case, or a longer word with it."""
    if match := re.search(_whole_word(word), text, re.IGNORECASE):
        return f", but {match[0]!r}: upper and lower case differ"
    if match := re.search(rf"\w*{re.escape(word)}\w*", text):
        return f" except in {match[0]!r}: name the whole word"
    return ": name a word that it has"
