"""Texts and fields of records, or the reason why a record has none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLANK_LINE = "\n\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

BAD_ENCODING, CUT_SURROGATE = "bad UTF-8", "half a surrogate pair"
BROKEN_CSV, BROKEN_JSON, NO_OBJECT = "broken CSV", "broken JSON", "not a JSON object"
ONE_OBJECT = "write one object per line, as `jq -c . OLD > NEW.jsonl` does"
REMEDIES = {  # of records that were set aside for these reasons
    BAD_ENCODING: "save the files as UTF-8, as `iconv -f ENCODING -t UTF-8 OLD > NEW` does",
    BROKEN_CSV: 'check delimiter, and set quoting to "none" if quotes are text, to "double" if fields are in quotes',
    BROKEN_JSON: ONE_OBJECT,
    NO_OBJECT: ONE_OBJECT,
}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record without a text, and the reason."""

    reason: str


class Absent(Unreadable):
    """A field that a record does not have, or that is null."""


Fields = dict[str, Any]  # of a record: values as in JSON, or Unreadable; strings only in .csv files
FieldsRecord = tuple[int, Fields | Unreadable]  # of a file: its offset or number, and its fields


def text_or_reason(raw: bytes) -> str | Unreadable:
    """Returns the text that the bytes encode, or that they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)


def text_in(fields: Fields | Unreadable, names: Sequence[str]) -> str | Unreadable:
    """Returns the text in one or several fields of a record, or why there is none.

    The texts of several fields, and those of a list, are joined by blank lines. Absent or blank values are left out; a
    value that is not text leaves the record without a text.
    """
    found = [_text_of(value_at(fields, name), name) for name in names]
    return found[0] if len(found) == 1 else _joined(found) or found[0]


def value_at(fields: Any, name: str) -> Any:
    """Returns the value of a field, or of one inside others; Absent if there is none.

    {"a": {"b": 1}} has 1 at a.b, and so has {"a.b": 1}: the whole name takes precedence.
    {"a": [{"b": 1}, {"b": 2}]} has [1, 2] there.
    """
    if isinstance(fields, dict) and name in fields:
        return fields[name]
    if isinstance(fields, list):
        return [value_at(item, name) for item in fields]
    if fields is None or isinstance(fields, Unreadable):
        return fields
    dots = [i for i, char in enumerate(name) if char == "." and isinstance(fields, dict) and name[:i] in fields]
    found = (value_at(fields[name[:dot]], name[dot + 1 :]) for dot in dots)
    return next((value for value in found if not isinstance(value, Absent)), Absent(f"no field {name!r}"))


def _text_of(value: Any, name: str) -> str | Unreadable:
    if value is None:
        return Absent("null")
    if isinstance(value, list):
        return _joined([_text_of(item, name) for item in value])
    return value if isinstance(value, str | Unreadable) else Unreadable(f"field {name!r} is not text")


def _joined(texts: Sequence[str | Unreadable]) -> str | Unreadable:
    wrong = (text for text in texts if isinstance(text, Unreadable) and not isinstance(text, Absent))
    return next(wrong, None) or BLANK_LINE.join(text for text in texts if isinstance(text, str) and text.strip())
