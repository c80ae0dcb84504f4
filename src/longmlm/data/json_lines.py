r"""Members of the JSON objects in .jsonl files; a member that cannot be read does not affect the others.

A line that a parser refuses is cut into the members of its object, and each value is parsed by itself:

    {"id": 01, "text": "The lake was calm.", "tags": [NaN, "\ud83d"]}

has a text, although neither its id nor its tags are JSON.
"""

import json
import re
from contextlib import suppress
from typing import Any

import orjson

from longmlm.data.texts import BAD_ENCODING, BYTE_ORDER_MARK, Fields, Unreadable, text_or_reason

HEAD_BYTES = 1 << 20
BROKEN = "broken JSON"
PYTHON = "a dictionary in Python's notation, not JSON"
ARRAY = "a JSON array, not an object"
NO_OBJECT = "not a JSON object"
PROBLEMS = (BROKEN, PYTHON, ARRAY, NO_OBJECT)
CUT_SURROGATE = "half a surrogate pair"
# Matches an unclosed string too, without a closing quote: otherwise a search would restart at each escaped quote.
STRING = rb'"(?:[^"\\]++|\\.)*+("?)'
MARK = re.compile(STRING + rb"|[\[\]{}:,]", re.DOTALL)
VALUE = re.compile(STRING + rb'|[\[{].*[\]}]|[^\s"]+', re.DOTALL)
CLOSING = {b"[": b"]", b"{": b"}"}


def object_of(line: bytes) -> Fields | Unreadable:
    """Returns the members of the object in a line, or why the line holds no object.

    The last of several members with the same name counts, as for every parser.
    """
    with suppress(ValueError):
        if isinstance(value := orjson.loads(line), dict):
            return value
    line = line.removeprefix(BYTE_ORDER_MARK)
    parts = _parts(line.strip())
    if parts is None:
        return Unreadable(_not_an_object(line))
    members = {_value_of(name): _value_of(value) for name, value in zip(parts[::2], parts[1::2], strict=True)}
    return {name: value for name, value in members.items() if isinstance(name, str)}


def _not_an_object(line: bytes) -> str:
    """Returns why a line holds no object that can be read."""
    if isinstance(text_or_reason(line), Unreadable):
        return BAD_ENCODING
    beginning = line[:HEAD_BYTES].lstrip()
    if beginning.startswith(b"{'"):
        return PYTHON
    return {b"{": BROKEN, b"[": ARRAY}.get(beginning[:1], NO_OBJECT)


def _parts(line: bytes) -> list[bytes] | None:
    """Returns name, value, name, value ... of an object as bytes of the line; None if the line cannot be split.

    Only what separates them is checked; a value may hold anything in which quotes and brackets are paired.
    """
    closing: list[bytes] = []  # the brackets that are open
    parts: list[bytes] = []
    ends, begin = bytearray(), 1
    for found in MARK.finditer(line):
        mark = found[0]
        if mark in CLOSING:
            closing.append(CLOSING[mark])
        elif found[1] == b"" or (mark in CLOSING.values() and (not closing or closing.pop() != mark)):
            return None
        if len(closing) == (1 if mark in (b":", b",") else 0):
            parts.append(line[begin : found.start()].strip())
            ends += mark
            begin = found.end()
    is_object = ends == b":," * (len(parts) // 2 - 1) + b":}" and begin == len(line)
    is_paired = is_object and all(name.startswith(b'"') for name in parts[::2])
    return parts if is_paired and all(map(VALUE.fullmatch, parts)) else None


def _value_of(encoded: bytes) -> Any:
    """Returns the value that JSON encodes, or why it cannot be read.

    Control characters, NaN and numbers of any size are accepted.
    """
    try:
        return orjson.loads(encoded)
    except ValueError:
        pass
    try:
        value = json.loads(encoded.decode(), strict=False)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)
    except UnicodeEncodeError:
        return Unreadable(CUT_SURROGATE)
    except (ValueError, RecursionError):
        return Unreadable(BROKEN)
