"""JSON objects of .jsonl and .json files: those of a line, and those of an array, read in little memory."""

import codecs
import json
import re
from collections.abc import Iterator

import orjson

from longmlm.data.files import CHUNK_BYTES, open_bytes
from longmlm.data.texts import BAD_ENCODING, BROKEN_JSON, CUT_SURROGATE, NO_OBJECT, Fields, Unreadable
from longmlm.errors import DataError
from longmlm.hubs.storage import AnyPath

ELEMENT_CHARACTERS = 1 << 27  # an element that is not closed within these is broken
BETWEEN = re.compile(r"[\s,\[\]\ufeff]*", re.ASCII)  # elements; a list of lists has all their elements
DECODER = json.JSONDecoder(strict=False)


def object_of(encoded: bytes) -> Fields | Unreadable:
    """Returns the members of an object, or why there is none.

    What json.dumps writes by default is accepted although it is not JSON: NaN and infinities.
    """
    try:
        value = orjson.loads(encoded)
    except ValueError:
        try:
            value = json.loads(encoded.decode("utf-8-sig"), strict=False)
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeDecodeError:
            return Unreadable(BAD_ENCODING)
        except UnicodeEncodeError:
            return Unreadable(CUT_SURROGATE)
        except (ValueError, RecursionError):
            return Unreadable(BROKEN_JSON if encoded.lstrip().startswith(b"{") else NO_OBJECT)
    return value if isinstance(value, dict) else Unreadable(NO_OBJECT)


def elements_of(path: AnyPath, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and the bytes of each element of a .json file that begins at `begin` or later and before `end`.

    The file or an element begins at `begin`. Raises DataError for a broken element, since nothing shows where it ends.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    with open_bytes(path) as stream:
        offset, text, at, is_last = stream.seek(begin) if begin else 0, "", 0, False
        while True:
            start = BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            offset, at = offset + _num_bytes(text[at:start]), start
            if offset >= end or (is_last and at == len(text)):
                return
            after, broken_at, reason = _end_of_value(text, at)
            if not is_last and (after is None or after == len(text)) and len(text) - at <= ELEMENT_CHARACTERS:
                chunk = stream.read(max(CHUNK_BYTES, len(text) - at))
                text, at, is_last = text[at:] + decoder.decode(chunk, not chunk), 0, not chunk
                continue
            if after is None:
                raise DataError(
                    f"{path} is broken at byte {offset + _num_bytes(text[at:broken_at]):,} ({reason}), and nothing "
                    "shows where the next object begins: correct it, or write one object per line, in a .jsonl file"
                )
            element = text[at:after].encode(errors="surrogateescape")
            yield offset, element
            offset, at = offset + len(element), after


def _end_of_value(text: str, begin: int) -> tuple[int | None, int, str]:
    """Returns the end of the value that begins here; None if it is broken or not whole, with the place and reason."""
    try:
        return DECODER.raw_decode(text, begin)[1], begin, ""
    except json.JSONDecodeError as error:
        return None, error.pos, error.msg
    except (ValueError, RecursionError) as error:
        return None, begin, str(error)


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))
