"""Where the sentences of a text start, by the rules of its language.

A regular expression finds each mark that may end a sentence, with the quotes and brackets that close after it; a short
quotation or bracket is passed over as a whole. At each such mark, the tables of sentences.toml decide whether the
sentence goes on:

en  See Eq. | 4.            de  der 2. | Weltkrieg         ru  романы, т. е. | книги
ja  「はい。」| と答えた。      zh  “走吧。”| 他说。          ar  د. | أحمد

Nothing outside a paragraph decides where a sentence in it ends.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from longmlm.data.vocabulary import UNSPACED

TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMED = {word: name for name, table in TABLES.items() for word in (name, *table.get("related", "").split())}

MAX_QUOTED = 80  # characters of a quotation or bracket that is passed over as a whole
CONTEXT = 40  # characters on each side that decide
FIRST_LETTER = 200  # characters within which a sentence has its first letter
MAX_ENUMERATOR = 12  # characters of the number or letter of an item
TAIL = 4  # last letters of a word, which show for most words that they are no abbreviation

WEAK = ".!?…‥"  # end a sentence before white space, and between ideographs
# End it anywhere: the other characters of the basic plane with the property Sentence_Terminal.
STRONG = "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿‼‽⁇⁈⁉⳹⳺⳻⸮⸼⹓⹔。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫︒︕︖﹒﹖﹗！．？｡"
INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
CLOSING = "”’›»」』】》〉〕］）｝〗｣)]}" + INVISIBLE
ENDING = CLOSING + "\"'“«‘ \u00a0\u202f"
OPENING = "\"'“”„‘’‚«»‹›「『(（[{<¿¡—–-•*_ \u00a0\u202f" + INVISIBLE
INNER = ",;:.!?/)]}、，；："  # marks with which no sentence starts
HAN = UNSPACED + "\u3000-\u303f\uff00-\uffef"

EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*")  # with one first character, which is found faster than one of two
PARAGRAPH = re.compile(rf"{EMPTY_LINE.pattern}|\u2029\s*")
FOOTNOTES = re.compile(r"(?: ?\[\d{1,3}\])+\Z")
ENUMERATOR = re.compile(r"\W*(?:\d{1,3}|[A-Za-zА-Яа-я]|[ivxIVX]{1,5})[.)]{1,2}\Z")
ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.-?)+[^\W\d_]{1,2}\Z")
PART = re.compile(r"[-.'’]")  # what joins the parts of a word
NUMBER = re.compile(r"\(?(?:[\d§#]|[IVXLC]{2,}\b|[VX]\b|I(?=[,.;:)]| and | of | to ))")
WORD = re.compile(r"\W{0,20}(\w+(?:['’]\w+)?)(?!\.)\b")
CLOSING_QUOTES = frozenset('”’»›」』】》）)"')
OPENING_QUOTES = frozenset("“‘«‹„「『\"'")
BRACKETS = ("(", "（")
IDEOGRAPH = re.compile(f"[{HAN}]")

PAIRS = ("()", "（）", "「」", "『』", "《》", "【】")
QUOTATIONS = {  # by language: what opens them, then what may close them
    **dict.fromkeys(("de", "da", "cs", "hr", "hu"), ("»«", "„“”", "‚‘’")),
    "": ("“”", "«»", "„”", "‹›"),
}
STRAIGHT_QUOTATION = f'(?<=")(?<![a-zA-Z0-9.,!?…]")(?=\\S)[^"]{{1,{MAX_QUOTED}}}"(?![a-zA-Z0-9])'

Rule = tuple[tuple[str, ...], re.Pattern[str], re.Pattern[str]]


@dataclass(frozen=True, slots=True)
class Language:
    """The rules of a language.

    `abbreviations` maps each abbreviation to its key in the table of sentences.toml; `tails` are their last letters.
    `ruled` are the endings to which a rule applies, `sure` the marks to which none does.
    """

    candidates: re.Pattern[str]
    marks: frozenset[str]
    abbreviations: dict[str, str]
    tails: frozenset[str]
    openers: frozenset[str]
    rules: tuple[Rule, ...]
    ruled: frozenset[str]
    sure: frozenset[str]


@cache
def _language(code: str) -> Language:
    name = NAMED.get(code) or NAMED.get(code.partition("-")[0], "und")
    table = TABLES[name]
    marks = table.get("marks", "")
    abbreviations = {word: key for key in ("numbered", "last", "never") for word in table.get(key, "").split()}
    rules = [(tuple(ends.split("|")), before, after) for ends, before, after in table.get("rules", ())]
    ruled = frozenset(end for ends, _, _ in rules for end in ends)
    return Language(
        candidates=_candidates(WEAK + marks, QUOTATIONS.get(name, QUOTATIONS[""])),
        marks=frozenset(WEAK + marks + STRONG),
        abbreviations=abbreviations,
        tails=frozenset(word[-TAIL:] for word in abbreviations),
        openers=frozenset(table.get("openers", "").split()),
        rules=tuple((ends, re.compile(before, re.IGNORECASE), re.compile(after)) for ends, before, after in rules),
        ruled=ruled,
        sure=frozenset(STRONG + "!?") - ruled,
    )


def _candidates(weak: str, quotations: tuple[str, ...]) -> re.Pattern[str]:
    """Returns the pattern of marks with what closes after them, or of a short quotation or bracket and its marks.

    It begins with a set of characters, which is what the regular expression engine finds fastest.
    """
    pairs = [(re.escape(pair[0]), re.escape(pair[1:])) for pair in PAIRS + quotations]
    opening = "".join(opens for opens, _ in pairs)
    weak, strong, closing = re.escape(weak), re.escape(STRONG), re.escape(CLOSING)
    marks = f"[{weak}{strong}]"
    quoted = [
        f"(?<={opens})(?=[^{opens}{closes}{weak}{strong}]*+{marks})[^{opens}{closes}]{{1,{MAX_QUOTED}}}[{closes}]"
        for opens, closes in pairs
    ]
    closed = (
        f"[{closing}]*+(?:[\"'“«‘{closing}]{{1,8}}(?=[\\s\\[]|\\Z))?(?: ?\\[\\d{{1,3}}\\])*"
        "(?:[ \u00a0\u202f]?(?:[»›](?=[\\s,.;:]|\\Z)|''(?=\\s|\\Z)))?"
    )
    before_space = f"(?: \\.)*{closed}(?:(?=[\\s{HAN}]|\\Z)|(?<=[a-z]{{3}}[.!?])(?=[A-Z]))"
    return re.compile(
        f'[{weak}{strong}{opening}"](?:(?<={marks})(?<!{marks}[\\s\\S])'
        f"(?:(?<=[{strong}])(?<!\\d．(?=\\d)){marks}*+{closed}|(?<=[{weak}]){marks}*+{before_space})"
        f"|(?:{'|'.join([*quoted, STRAIGHT_QUOTATION])}){marks}*+(?:{before_space}|{closed}))"
    )


def sentence_starts(text: str, language: str) -> Int64[np.ndarray, " sentences"]:
    """Returns the character offset at which each sentence of `text` starts; the first is 0.

    A sentence extends to the start of the next, so no character is lost: white space between two sentences belongs to
    the second, closing marks belong to the first. A language without a table has the rules that all languages share.
    """
    rules, text, starts = _language(language), text.rstrip(), [0]
    for begin, end in _paragraphs(text):
        starts += _ends(text, begin, end, rules)
        last = begin + len(text[begin:end].rstrip())
        if starts[-1] < last < len(text):
            starts.append(last)
    return np.array(starts, dtype=np.int64)


def _ends(text: str, begin: int, end: int, language: Language) -> list[int]:
    """Returns where sentences end within a paragraph."""
    ends = []
    sentence = counted = begin
    num_quotes = 0
    for candidate in language.candidates.finditer(text, begin, end):
        offset = candidate.end()
        if offset >= end:
            break
        if text[offset] == '"':
            num_quotes, counted = num_quotes + text.count('"', counted, offset), offset
            offset += num_quotes % 2  # every second one closes
            if offset == end:
                break
        is_end = _plainly_ends(text, sentence, offset, language)
        if is_end is None:
            is_end = not _goes_on(text, (sentence, offset, end), language)
        if is_end:
            ends.append(offset)
            sentence = offset
    return ends


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for border in (PARAGRAPH if "\u2029" in text else EMPTY_LINE).finditer(text):
        yield begin, border.start()
        begin = border.end()
    yield begin, len(text)


def _plainly_ends(text: str, sentence: int, offset: int, language: Language) -> bool | None:
    """Returns whether the sentence ends at a candidate of the usual kind; None if only _goes_on can tell."""
    last, following = text[offset - 1], text[offset]
    if last in CLOSING_QUOTES:
        inner = text[offset - 2]
        if inner not in language.marks:
            return None if inner in ENDING else False  # a quotation or bracket that ends without a mark
        if last in language.ruled or offset - sentence <= MAX_ENUMERATOR:
            return None
        last = inner if inner in STRONG else "!"
    elif last == "." and offset - sentence > MAX_ENUMERATOR and text[offset - 2 : offset] not in language.ruled:
        tail = text[offset - 1 - TAIL : offset - 1].lower()
        word = tail[tail.rfind(" ") + 1 :]
        if word[-1:] in CLOSING_QUOTES or (len(word) > 1 and word.isalnum() and word not in language.tails):
            last = "!"
        elif len(word) < len(tail) and language.abbreviations.get(word) == "never":
            return False
    if following in " \n":
        following = text[offset + 1]
    elif last not in STRONG:
        return None
    if following in OPENING_QUOTES:
        following = text[offset + 2 : offset + 3]
    return True if last in language.sure and following.isalnum() and not following.islower() else None


def _goes_on(text: str, within: tuple[int, int, int], language: Language) -> bool:
    """Returns whether a sentence goes on at a candidate's end; `within` is its start, that end and the paragraph's."""
    sentence, offset, end = within
    before, after = text[max(sentence, offset - CONTEXT) : offset], text[offset : min(offset + CONTEXT, end)]
    if before[-1] == "]":
        before = FOOTNOTES.sub("", before)
    left, right = before.rstrip(ENDING), after.lstrip()
    mark, first = left[-1:], right.lstrip(OPENING)[:1]
    if mark not in language.marks:
        return True  # a quotation or bracket that ends without one
    is_closed = len(left) < len(before.rstrip(INVISIBLE))
    is_item = offset - sentence < MAX_ENUMERATOR and ENUMERATOR.match(text[sentence:offset])
    if (
        (mark not in STRONG and not after[0].isspace() and not _needs_no_space(left, right, is_closed, language))
        or (
            first.islower()
            and mark not in STRONG
            and _starts_with_capital(text[sentence : min(sentence + FIRST_LETTER, offset)])
        )
        or (first and first in INNER and not right.startswith(",,"))  # an opening quote
        or (is_closed and right[:1] in BRACKETS)
        or (mark == "." and (is_item or (not is_closed and _is_abbreviated(left, right, language))))
    ):
        return True
    return any(
        before.endswith(ends) and goes_on.match(right) and ending.search(before)
        for ends, ending, goes_on in language.rules
    )


def _needs_no_space(left: str, right: str, is_closed: bool, language: Language) -> bool:
    """Returns whether a weak mark ends a sentence without white space: among ideographs, or before an opener."""
    if IDEOGRAPH.match(right):
        return is_closed or left[-1] in "!?" or (left[-1] == "." and bool(IDEOGRAPH.match(left[-2:-1])))
    opener = WORD.match(right)
    return bool(opener and opener[1] in language.openers)


def _starts_with_capital(sentence: str) -> bool:
    letter = next((character for character in sentence if character.isalpha()), "")
    return letter.isupper()


def _is_abbreviated(left: str, right: str, language: Language) -> bool:
    """Returns whether the sentence goes on because the full stop that ends `left` belongs to an abbreviation."""
    words = left[:-1].rsplit(None, 1)
    if not words or left[-2] == "." or left[-2].isspace():
        return False
    word = words[-1].strip(OPENING)
    small = word.lower().rpartition("/")[2]
    kind = language.abbreviations.get(small) or language.abbreviations.get(PART.split(small)[-1])
    if kind == "never" or (kind == "numbered" and NUMBER.match(right)):
        return True
    if kind == "last" or ACRONYM.match(small) or (len(word) == 1 and _may_be_initial(word)):
        following = WORD.match(right)
        return not (following and following[1] in language.openers)
    return False


def _may_be_initial(letter: str) -> bool:
    return letter.lower() != letter.upper() or "\u05d0" <= letter <= "\u064a"  # Hebrew and Arabic
