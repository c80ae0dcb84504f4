"""Texts and fields of records, or the reason why a record has none."""

from dataclasses import dataclass
from typing import Any

BAD_ENCODING = "bad UTF-8"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record without a text, and the reason."""

    reason: str


Fields = dict[str, Any]  # of a record: values as in JSON, or Unreadable; strings only in .csv files
FieldsRecord = tuple[int, Fields | Unreadable]  # of a file: its offset or number, and its fields


def text_or_reason(raw: bytes) -> str | Unreadable:
    """Returns the text that the bytes encode, or that they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)


def text_in(fields: Fields | Unreadable, field: str) -> str | Unreadable:
    """Returns the text in a field of a record, or why there is none."""
    if isinstance(fields, Unreadable):
        return fields
    if field not in fields:
        return Unreadable(f"no field {field!r}")
    text = fields[field]
    if text is None:
        return Unreadable("null")
    return text if isinstance(text, str | Unreadable) else Unreadable(f"field {field!r} is not text")
