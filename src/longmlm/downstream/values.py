"""Values of labelled records to labels and spans; a faulty value raises ValueError with the reason."""

import ast
import math
import re
from itertools import pairwise
from typing import Any

import orjson

from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.settings import SpanUnit

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
        return (parse_label(value),), False
    return tuple(sorted({parse_label(item) for item in value})), True


def parse_label(value: Any, kind: str = "label") -> str:
    """Returns a label, or the name of a group, as text."""
    if is_missing(value):
        raise ValueError(f"no {kind}")
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float() if value.is_integer():  # a column of integers in which some are missing
            return str(int(value))
        case str():
            return value.strip()
    raise ValueError(f"the {kind} is neither a string, an integer nor true or false")


def parse_spans(value: Any, text: str, unit: SpanUnit) -> tuple[LabelledSpan, ...]:
    """Returns spans in characters, in their order, without white space at their ends.

    The value is a list of {start, end, label} or [start, end, label], or a dict of three lists.
    """
    value = _parsed(value)
    if is_missing(value):
        raise ValueError("no spans")
    if isinstance(value, dict) and all(isinstance(value.get(key), list) for key in SPAN_KEYS):
        value = list(zip(*(value[key] for key in SPAN_KEYS), strict=True))
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
        raise ValueError("a word that is not text")
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


def is_missing(value: Any) -> bool:
    """Returns whether a field is empty: None, white space or NaN."""
    is_blank = isinstance(value, str) and not value.strip()
    return is_blank or value is None or (isinstance(value, float) and math.isnan(value))


def _tag_of(value: Any) -> tuple[str, str]:
    """Returns the prefix of a tag and its label; a missing tag is O."""
    if is_missing(value) or value == "O":
        return "O", ""
    prefix, dash, label = value.partition("-") if isinstance(value, str) else ("", "", "")
    if prefix not in PREFIXES or not dash or not label:
        raise ValueError(f"the tag {value!r} is neither O nor a prefix (B, I, E, S, L or U), a dash and a label")
    return prefix, label


def _span_of(item: Any, text: str, words: list[tuple[int, int]] | None) -> LabelledSpan:
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
    return LabelledSpan(end - len(part.lstrip()), start + len(part.rstrip()), parse_label(label))


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
