"""Texts of records, or the reason why a record has none."""

from dataclasses import dataclass

BAD_ENCODING = "bad UTF-8"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record without a text, and the reason."""

    reason: str


Record = tuple[int, str | Unreadable]  # of a file: its offset or number, and its text


def text_or_reason(raw: bytes) -> str | Unreadable:
    """Returns the text that the bytes encode, or that they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Unreadable(BAD_ENCODING)
