"""Values of labelled records to labels, spans and scores; a faulty value raises ValueError with the reason."""

import ast
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson

from longmlm.artifacts.downstream import LabelledSpan
from longmlm.settings.downstream import SpanUnit

SPAN_KEYS = ("start", "end", "label")
PREFIXES, STARTING, ENDING = (*"BIESLU",), (*"BSU",), (*"ESLU",)  # of tags: BIO, BIOES and BILOU
WORD = re.compile(r"\S+")
# NumPy writes a list of strings without commas, and Python would join these strings.
WITHOUT_COMMA = re.compile(r"""\[\s*(['"])[^'"]*\1\s+\1""")


def parse_labels(value: Any) -> tuple[tuple[str, ...], bool]:
    """Returns the labels, sorted, and whether the value is a list of labels. A label is a string, integer or bool.

    In a table, a list may be written as text, as in JSON or Python.
    """
    value = _parsed(value)
    if not isinstance(value, list | tuple):
        return (_label_of(value),), False
    return tuple(sorted({_label_of(item) for item in value})), True


def parse_group(value: Any) -> str | None:
    """Returns the name of a group, a string, integer or bool; None for an empty field."""
    try:
        return None if is_missing(value) else _label_of(value)
    except ValueError:
        raise ValueError("the group is neither a string, an integer nor true or false") from None


def parse_score(value: Any) -> float:
    """Returns a finite number."""
    if is_missing(value):
        raise ValueError("no score")
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("the score must be a number, such as 0.8")
    return score


def parse_spans(value: Any, text: str, unit: SpanUnit) -> tuple[LabelledSpan, ...]:
    """Returns spans in characters, in their order, without white space at their ends.

    The value is a list of {start, end, label} or [start, end, label], or a dict of three lists.
    """
    value = _parsed(value)
    if is_missing(value):
        raise ValueError("no spans")
    columns = [value.get(key) for key in SPAN_KEYS] if isinstance(value, dict) else []
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) == len(SPAN_KEYS) and len({*map(len, lists)}) == 1:
        value = list(zip(*lists, strict=True))
    if not isinstance(value, list | tuple):
        raise ValueError("the spans are not a list")
    words = [match.span() for match in WORD.finditer(text)] if unit == "words" else None
    spans = sorted((_span_of(item, text, words) for item in value), key=lambda span: span.start)
    if any(following.start < span.end for span, following in pairwise(spans)):
        raise ValueError("overlapping spans")
    return tuple(spans)


def parse_tags(words: Any, tags: Any) -> tuple[str, tuple[LabelledSpan, ...]]:
    """Returns the words as a text, and the spans of their tags.

    Example: Anna Karenina in Bern, tagged B-PER I-PER O B-LOC, has PER from character 0 to 13 and LOC from 17 to 21. As
    in conlleval, an I- tag that does not continue a span of its label starts one. E-, S-, L- and U- tags count too.
    """
    words, tags = _parsed(words), _parsed(tags)
    if not all(isinstance(values, list | tuple) for values in (words, tags)):
        raise ValueError("words or tags are not a list")
    if len(words) != len(tags):
        raise ValueError("not as many tags as words")
    if not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("a word that is no text")
    words = [word.strip() for word in words]
    spans, begin, is_open = list[LabelledSpan](), 0, False
    for word, tag in zip(words, tags, strict=True):
        prefix, label = _tag_of(tag)
        if prefix != "O" and is_open and prefix not in STARTING and spans[-1].label == label:
            spans[-1] = LabelledSpan(spans[-1].start, begin + len(word), label)
        elif prefix != "O":
            spans.append(LabelledSpan(begin, begin + len(word), label))
        is_open = prefix != "O" and prefix not in ENDING
        begin += len(word) + 1
    return " ".join(words), tuple(spans)


def _tag_of(value: Any) -> tuple[str, str]:
    """Returns the prefix of a tag and its label; a missing tag is O."""
    if is_missing(value) or value == "O":
        return "O", ""
    prefix, dash, label = value.partition("-") if isinstance(value, str) else ("", "", "")
    if prefix not in PREFIXES or not dash or not label:
        raise ValueError(f"the tag {value!r} is neither O nor a prefix (B, I, E, S, L or U), a dash and a label")
    return prefix, label


def _span_of(item: Any, text: str, words: Sequence[tuple[int, int]] | None) -> LabelledSpan:
    parts = [item.get(key) for key in SPAN_KEYS] if isinstance(item, dict) else item
    if not isinstance(parts, list | tuple) or len(parts) != len(SPAN_KEYS) or [*map(type, parts[:2])] != [int, int]:
        raise ValueError("a span without start, end and label")
    start, end, label = parts
    if not 0 <= start < end <= len(text if words is None else words):
        raise ValueError("a span outside the text")
    if words is not None:
        start, end = words[start][0], words[end - 1][1]
    part = text[start:end]
    if not part.strip():
        raise ValueError("a span of white space")
    return LabelledSpan(end - len(part.lstrip()), start + len(part.rstrip()), _label_of(label))


def _label_of(value: Any) -> str:
    if is_missing(value):
        raise ValueError("no label")
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float() if value.is_integer():  # a column of integers in which some are missing
            return str(int(value))
        case str():
            return value.strip()
    raise ValueError("the label is neither a string, an integer nor true or false")


def is_missing(value: Any) -> bool:
    """Returns whether a field is empty: None, white space or NaN."""
    is_blank = isinstance(value, str) and not value.strip()
    return is_blank or value is None or (isinstance(value, float) and math.isnan(value))


def _parsed(value: Any) -> Any:
    """Returns the list that a string spells, if it does, else the value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        if WITHOUT_COMMA.search(value):
            raise ValueError("a list without commas")
        for parse in (orjson.loads, ast.literal_eval):
            try:
                return parse(value.strip())
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
    return value
