"""Where words start: found from the tokens themselves or, for Chinese and Japanese, by rjieba.

White space opens a word, and so does a character of another kind than the one before it:

    byte-level BPE    The| under·standing| don|'|t| 3|.|14| gr·ü·ße| 北京|大学
    WordPiece         the|under·##standing|don|'|t|covid|##19|北|京|大|学

Letters of all alphabets are of one kind, Hangul syllables among them; digits, marks (apostrophes and hyphens too) and
katakana are others. Han, hiragana, Thai, Lao, Burmese and Khmer put no space between words: each character is one, or
each token that holds several. Combining marks, joiners and ー belong to the character before them. No word starts
within a token.

rjieba finds 北京大学|在|海淀 in a text. A word starts at a token if one starts at its first character, or in characters
before it that are in no token, such as white space.
"""

import codecs
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache
from importlib import metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Int64
from tokenizers import AddedToken, Tokenizer

from longmlm.data.pretrained import TOKENIZER_FILE
from longmlm.data.row import Maskable, WordTable
from longmlm.data.vocabulary import CONTINUATION_BYTES, UNSPACED, Vocabulary, term_lines
from longmlm.errors import DataError
from longmlm.settings.masking import Masking
from longmlm.settings.prepare import PrepareRecipe

METASPACE = "▁"
FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # a byte of a character that is not in the vocabulary
EACH_A_WORD = re.compile(f"[{UNSPACED}]")
KATAKANA = re.compile("[\u30a1-\u30fa\u30fc-\u30fe\u31f0-\u31ff\uff66-\uff9f]+")
Utf8Decoder = codecs.getincrementaldecoder("utf-8")
TERM = re.compile(r"(\S{2,})(?:\s+(\d{1,18}))?(?:\s+([a-z]+))?")  # a line of a user dictionary of jieba


class Kind(IntEnum):
    """Kinds of characters."""

    JOINED = 0  # belongs to the character before it, or is a part of one
    SPACE = 1  # opens a word, as does a token that is marked so
    LETTER = 2
    DIGIT = 3
    MARK = 4
    KATAKANA = 5
    EACH = 6  # each character is a word
    END = 7  # of a token that ends a word


BITS = {kind: 1 << kind if kind else 0 for kind in Kind}  # of the last character before a token
NOT_AFTER_SPACE = 0xFF & ~BITS[Kind.SPACE]  # white space belongs to the word after it
STARTS_AFTER = {kind: NOT_AFTER_SPACE & ~BITS[kind] for kind in Kind}  # by the kind of a token's first character
STARTS_AFTER |= {Kind.JOINED: BITS[Kind.END], Kind.SPACE: 0xFF, Kind.EACH: NOT_AFTER_SPACE}


@cache
def character_kind(character: str) -> Kind:
    """Returns the kind of a character."""
    category = unicodedata.category(character)
    if character.isspace():
        return Kind.SPACE
    if category[0] == "M" or category in ("Cf", "Lm"):
        return Kind.JOINED
    if category[0] == "N":
        return Kind.DIGIT
    if category[0] != "L":
        return Kind.MARK
    if KATAKANA.match(character):
        return Kind.KATAKANA
    return Kind.EACH if EACH_A_WORD.match(character) else Kind.LETTER


@cache
def _kind_of_prefix(content: bytes) -> Kind:
    """Returns the kind of most characters that begin with these bytes in UTF-8, judged by a sample of them."""
    missing = 1 + (content[0] >= 0xE0) + (content[0] >= 0xF0) - len(content[1:])  # noqa: PLR2004
    tails = product(CONTINUATION_BYTES[:: 4 ** (missing - 1)], repeat=missing)
    characters = (character for tail in tails for character in (content + bytes(tail)).decode(errors="ignore"))
    kinds = Counter(character_kind(one) for one in characters if unicodedata.category(one) not in ("Cn", "Co"))
    return max(kinds, key=lambda kind: kinds[kind], default=Kind.MARK)


def kinds_of(content: bytes) -> tuple[Kind, Kind]:
    """Returns the kinds of a token's first and last character, which may both be incomplete."""
    whole, decoder = content.lstrip(bytes(CONTINUATION_BYTES)), Utf8Decoder("replace")
    kinds = [*map(character_kind, decoder.decode(whole))]
    if rest := decoder.getstate()[0]:
        kinds.append(_kind_of_prefix(rest))
    last = next((kind for kind in reversed(kinds) if kind), Kind.JOINED)
    return kinds[0] if kinds and len(whole) == len(content) else Kind.JOINED, last


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the tokens of a vocabulary are written.

    `prefix` marks tokens that go on with a word, `suffix` those that end one. `letters` has the byte of each letter in
    a byte-level vocabulary; others write white space as it is or as U+2581.
    """

    prefix: str
    suffix: str
    letters: Mapping[str, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Returns the spelling of a tokenizer's vocabulary."""
        described = json.loads(tokenizer.to_str())
        model = described["model"]
        prefix, suffix = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
        is_byte_level = '"ByteLevel"' in json.dumps([described["pre_tokenizer"], described["decoder"]])
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # each written as itself
        others = sorted({*range(256)} - {*printable})
        letters = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
        return cls(prefix, suffix, letters if is_byte_level else {})

    def content(self, token: str) -> bytes:
        """Returns the text of a token, or its part of a character, in UTF-8."""
        if match := FALLBACK.fullmatch(token):
            return bytes.fromhex(match[1])
        written = token.removeprefix(self.prefix).removesuffix(self.suffix)
        if self.letters.keys() >= {*written}:
            return bytes(self.letters[letter] for letter in written)
        return written.replace(METASPACE, " ").encode()

    def kinds(self, token: str) -> tuple[Kind, Kind]:
        """Returns the kinds of a token's first and last character: SPACE if it opens a word, END if it ends one."""
        first, last = kinds_of(self.content(token))
        opens, ends = self.prefix and not token.startswith(self.prefix), self.suffix and token.endswith(self.suffix)
        return Kind.SPACE if opens else first, Kind.END if ends else last


def check_shows_words(tokenizer: Tokenizer, name: str) -> None:
    """Raises DataError for a tokenizer whose tokens do not show where words start."""
    spelling, tokens = Spelling.of(tokenizer), tokenizer.encode("a a", add_special_tokens=False).tokens
    has_space = b" " in b"".join(map(spelling.content, tokens)).strip()
    if not (spelling.prefix or spelling.suffix or has_space):
        raise DataError(
            f"{name}: its tokens do not show where a word starts, as they neither hold white space nor mark the parts "
            'of a word: mask single tokens (unit = "token", and no words in [prepare.recipe])'
        )


def check_unit(masking: Masking, model: str) -> None:
    """Raises DataError if words or spans are masked and the tokens in a model's folder do not show where words start.

    A model elsewhere, or whose folder has no tokenizer.json that can be read, is not checked.
    """
    tokenizer = None
    with suppress(Exception):  # tokenizers raises nothing narrower
        tokenizer = Tokenizer.from_file(str(Path(model) / TOKENIZER_FILE)) if masking.unit != "token" else None
    if tokenizer:
        check_shows_words(tokenizer, model)


@lru_cache(maxsize=4)
def word_table(vocabulary: Vocabulary) -> WordTable:
    """Returns where words start, by the tokens of a vocabulary; raises DataError if they do not show it.

    Special tokens end a word. So do added tokens that are only matched as whole words, and they open one.
    """
    check_shows_words(vocabulary.tokenizer, vocabulary.name)
    spelling, added = Spelling.of(vocabulary.tokenizer), vocabulary.tokenizer.get_added_tokens_decoder()
    starts_after = np.zeros(vocabulary.size, dtype=np.uint8)
    last = np.full(vocabulary.size, BITS[Kind.END], dtype=np.uint8)
    for token, token_id in vocabulary.tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id not in vocabulary.special.all:
            kinds = _kinds_of_added(added[token_id]) if token_id in added else spelling.kinds(token)
            starts_after[token_id], last[token_id] = STARTS_AFTER[kinds[0]], BITS[kinds[1]]
    return WordTable(starts_after, last)


def _kinds_of_added(token: AddedToken) -> tuple[Kind, Kind]:
    first, last = kinds_of(token.content.encode())
    return Kind.SPACE if token.lstrip or token.single_word else first, Kind.END if token.single_word else last


@lru_cache(maxsize=4)
def maskable_by_words(vocabulary: Vocabulary) -> Maskable:
    """Returns what is maskable, and where words start; raises DataError if the tokens do not show it."""
    return replace(vocabulary.maskable, words=word_table(vocabulary))


@dataclass(frozen=True, slots=True)
class Segmenter:
    """A version of rjieba and the lines of a file of terms, which decide where the words of a text start."""

    version: str
    path: str = ""
    lines: tuple[str, ...] = ()

    def borders(self, text: str) -> Bool[np.ndarray, " characters"]:
        """Returns whether a word starts at each character, and False for the end of the text."""
        words = _jieba(self).cut(text)
        sizes = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        assert sizes.sum() == len(text)
        is_space = np.fromiter(map(str.isspace, words), dtype=bool, count=len(words))
        is_start = is_space.copy()
        is_start[1:] |= ~is_space[:-1]  # white space belongs to the word after it
        is_start[:1] = True
        is_border = np.zeros(len(text) + 1, dtype=bool)
        is_border[np.cumsum(sizes) - sizes] = is_start
        for run in KATAKANA.finditer(text):  # rjieba splits it into characters
            is_border[run.start() + 1 : run.end()] = False
        return is_border

    def starts(self, text: str, offsets: Int64[np.ndarray, "tokens 2"]) -> Bool[np.ndarray, " tokens"]:
        """Returns whether a word of the text starts at each token, given where in the text each begins and ends."""
        num_before = np.concatenate([[0], np.cumsum(self.borders(text))])
        ends = np.concatenate([[0], offsets[:-1, 1]])[: len(offsets)]
        return num_before[offsets[:, 0] + 1] > num_before[ends]


@lru_cache(maxsize=1)
def _jieba(segmenter: Segmenter) -> Any:
    """Returns rjieba with the terms; raises DataError for a line that is no term, or a term that it would split."""
    import rjieba

    if (version := metadata.version("rjieba")) != segmenter.version:
        raise DataError(f"rjieba {version} is installed here, not {segmenter.version}: install the same version")
    jieba, terms = rjieba.Jieba(), dict[int, str]()
    for number, line in ((index, line.strip()) for index, line in enumerate(segmenter.lines, 1) if line.strip()):
        if (match := TERM.fullmatch(line)) is None:
            raise DataError(
                f"terms: line {number} of {segmenter.path} is {line!r}: write a term of at least two characters "
                "without white space and, if you like, its frequency and part of speech after it"
            )
        terms[number], frequency, tag = match.groups()
        jieba.add_word(terms[number], int(frequency) if frequency else None, tag)
    if segmenter.path and not terms:
        raise DataError(f"terms: {segmenter.path} has no term: remove the setting, or add terms, one per line")
    for number, term in terms.items():
        if len(parts := jieba.cut(term)) > 1:
            raise DataError(
                f"terms: rjieba splits {term} in line {number} of {segmenter.path} into {' and '.join(parts)}: remove "
                "it, or its frequency; a term has only Chinese characters, Latin letters, digits and +#&._%-"
            )
    return jieba


def segmenter_of(recipe: PrepareRecipe) -> Segmenter | None:
    """Returns what finds the words of sources in Chinese and Japanese; None if it is not asked for.

    Raises DataError if rjieba is not installed, and for terms that cannot be words.
    """
    if recipe.words is None:
        return None
    if not find_spec("rjieba"):
        raise DataError("recipe.words = \"rjieba\" needs rjieba, which is not installed: pip install 'longmlm[words]'")
    lines = term_lines(recipe.terms, "terms") if recipe.terms else ()
    segmenter = Segmenter(metadata.version("rjieba"), recipe.terms or "", tuple(lines))
    _jieba(segmenter)
    return segmenter


def recorded_words(recipe: PrepareRecipe, earlier: str | None) -> tuple[str | None, str | None]:
    """Returns what the plan of rows records of words beside the settings: the segmenter, and the hash of the terms.

    Where rjieba is not installed, the segmenter is that of an `earlier` plan.
    """
    if recipe.words is None:
        return None, None
    segmenter = f"rjieba {metadata.version('rjieba')}" if find_spec("rjieba") else earlier
    if recipe.terms is None:
        return segmenter, None
    return segmenter, hashlib.sha256("\n".join(term_lines(recipe.terms, "terms")).encode()).hexdigest()
