r"""Members of the JSON objects in .jsonl files; a member that cannot be read does not affect the others.

A line that a parser refuses is cut into the members of its object, and each value is parsed by itself:

    {"id": 01, "text": "The lake was calm.", "tags": [NaN, "\ud83d"]}

has a text, although neither its id nor its tags are JSON.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from longmlm.data.texts import BAD_ENCODING, BYTE_ORDER_MARK, Unreadable, text_or_reason

Range = tuple[int, int]
Fields = dict[str, Any]  # of a record: values as in JSON, or Unreadable; strings only in .csv files

HEAD_BYTES = 1 << 20
BROKEN = "broken JSON"
PYTHON = "a dictionary in Python's notation, not JSON"
ARRAY = "a JSON array, not an object"
NO_OBJECT = "not a JSON object"
PROBLEMS = (BROKEN, PYTHON, ARRAY, NO_OBJECT)
CUT_SURROGATE = "half a surrogate pair"
# Matches an unclosed string too, without a closing quote: otherwise a search would restart at each escaped quote.
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
OPENING = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
FOLLOWING = re.compile(rb"[ \t\r\n]*([,}])[ \t\r\n]*")
SCALAR = re.compile(rb'[^ \t\r\n,:{}\[\]"]+')
STRING_OR_BRACKET = re.compile(STRING.pattern + rb"|[\[\]{}]", re.DOTALL)
CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}


def object_of(line: bytes) -> Fields | Unreadable:
    """Returns the members of the object in a line, or why the line holds no object.

    The last of several members with the same name counts, as for every parser.
    """
    try:
        value = orjson.loads(line)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else _read_by_member(line.removeprefix(BYTE_ORDER_MARK))


def _read_by_member(line: bytes) -> Fields | Unreadable:
    try:
        members = {_value_of(line, *name): _value_of(line, *value) for name, value in _members(line)}
        return {name: value for name, value in members.items() if isinstance(name, str)}
    except ValueError:
        return Unreadable(_not_an_object(line))


def _not_an_object(line: bytes) -> str:
    """Returns why a line holds no object that can be read."""
    if isinstance(text_or_reason(line), Unreadable):
        return BAD_ENCODING
    beginning = line[:HEAD_BYTES].lstrip()
    if beginning.startswith(b"{'"):
        return PYTHON
    return {b"{": BROKEN, b"[": ARRAY}.get(beginning[:1], NO_OBJECT)


def _members(line: bytes) -> Iterator[tuple[Range, Range]]:
    """Yields where the name and the value of each member begin and end; raises ValueError for other lines.

    Only what separates members is checked; the values may hold anything in which quotes and brackets are paired.
    """
    at = _match(OPENING, line, 0).end()
    while True:
        name = at, _end_of_string(line, at)
        begin = _match(COLON, line, name[1]).end()
        value = begin, _end_of_value(line, begin)
        yield name, value
        following = _match(FOLLOWING, line, value[1])
        at = following.end()
        if following[1] == b"}":
            break
    if at != len(line):
        raise ValueError(BROKEN)


def _match(pattern: re.Pattern[bytes], line: bytes, at: int) -> re.Match[bytes]:
    if not (match := pattern.match(line, at)):
        raise ValueError(BROKEN)
    return match


def _end_of_string(line: bytes, begin: int) -> int:
    match = _match(STRING, line, begin)
    if not match[1]:
        raise ValueError(BROKEN)
    return match.end()


def _end_of_value(line: bytes, begin: int) -> int:
    match line[begin : begin + 1]:
        case b'"':
            return _end_of_string(line, begin)
        case b"[" | b"{":
            return _end_of_nested(line, begin)
        case _:
            return _match(SCALAR, line, begin).end()


def _end_of_nested(line: bytes, begin: int) -> int:
    """Returns where an array or an object ends, however deep its values are nested."""
    expected = bytearray()
    for match in STRING_OR_BRACKET.finditer(line, begin):
        character = line[match.start()]
        if character in CLOSING:
            expected.append(CLOSING[character])
        elif character in CLOSING.values():
            if expected.pop() != character:
                break
            if not expected:
                return match.end()
    raise ValueError(BROKEN)


def _value_of(line: bytes, begin: int, end: int) -> Any:
    """Returns the value that a part of a line holds, or why it cannot be read."""
    view = memoryview(line)
    try:
        if line[begin : begin + 1] != b'"':
            return _parsed(view[begin:end])
        return _string_of(view[begin:end])
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)
    except UnicodeEncodeError:
        return Unreadable(CUT_SURROGATE)
    except (ValueError, RecursionError):
        return Unreadable(BROKEN)


def _string_of(encoded: bytes | memoryview) -> str:
    value = _parsed(encoded)
    if not isinstance(value, str):
        raise ValueError(BROKEN)
    return value


def _parsed(encoded: bytes | memoryview) -> Any:
    """Returns the value that JSON encodes; control characters, NaN and numbers of any size are accepted.

    Raises UnicodeDecodeError for bytes that are not UTF-8, UnicodeEncodeError for half a surrogate pair, and another
    ValueError or RecursionError for what is not JSON.
    """
    try:
        return orjson.loads(encoded)
    except ValueError:
        value = json.loads(str(encoded, "utf-8"), strict=False)
        json.dumps(value, ensure_ascii=False).encode()
        return value
