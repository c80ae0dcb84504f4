"""Sources to documents, in slices that the input alone decides."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longmlm.data.files import files_of
from longmlm.data.records import Unreadable, borders_of, extent_of, records_of
from longmlm.data.texts import Text, pieces_of
from longmlm.hubs.datasets import arrow_files
from longmlm.settings.prepare import Source

HASHES = 2**64  # how many values text_hash can take


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the corpus: `origin` is its path and byte or record, `source` the number of its source."""

    text: Text
    origin: str
    source: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that is no document, where it stands, and why."""

    origin: str
    reason: str
    source: int


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a file that begin at start <= place < end, counted in bytes or records; `size` in bytes."""

    path: str
    start: int
    end: int
    source: int
    size: int


Slice = tuple[Span, ...]


def plan_slices(sources: Sequence[Source], slice_bytes: int) -> list[Slice]:
    """Cuts the sources, in order, into slices of about `slice_bytes`: a large file gives several, small ones share."""
    slices: list[Slice] = []
    spans: list[Span] = []
    room = slice_bytes
    for number, source in enumerate(sources):
        for path in arrow_files(source) if source.dataset else files_of(source.files):
            for span in _spans(path, source.text_field, number, (room, slice_bytes)):
                spans.append(span)
                room -= span.size
                if room <= 0:
                    slices.append(tuple(spans))
                    spans, room = [], slice_bytes
    return [*slices, tuple(spans)] if spans else slices


def _spans(path: Path, field: str, source: int, rooms: tuple[int, int]) -> Iterator[Span]:
    """Yields the parts of a file: the first fills the room that is left in a slice, the others that of a whole one."""
    extent, borders = extent_of(path, field), borders_of(path)
    if extent.whole:
        yield Span(str(path), 0, extent.length, source, extent.length)  # an empty one is set aside as a document
        return
    start, room = 0, rooms[0]
    while start < extent.length:
        end = start + math.ceil(room / extent.unit_bytes)
        if borders:
            end = next((border for border in borders if border >= end), extent.length)
        end = min(extent.length, end)
        yield Span(str(path), start, end, source, round((end - start) * extent.unit_bytes))
        start, room = end, rooms[1]


def read_slice(spans: Slice, sources: Sequence[Source]) -> Iterator[Document | SetAside]:
    """Yields every record that begins in the slice, as a document or as what keeps it from being one."""
    for span in spans:
        for place, text in records_of(Path(span.path), span.start, span.end, sources[span.source].text_field):
            origin = f"{span.path}:{place}"
            if isinstance(text, Unreadable):
                yield SetAside(origin, text.reason, span.source)
            elif not any(piece.strip() for piece in pieces_of(text)):
                yield SetAside(origin, "empty", span.source)
            else:
                yield Document(text, origin, span.source)


def text_hash(text: Text) -> int:
    """Returns a hash of 64 bits, the same for exact copies."""
    digest = hashlib.blake2b(digest_size=8)
    for piece in pieces_of(text):
        digest.update(piece.encode())
    return int.from_bytes(digest.digest(), "big")


def is_held_out(text: Text, fraction: float) -> bool:
    """Returns whether a document is held out: decided by the hash of its text, so that no copy is on the other side."""
    return text_hash(text) < fraction * HASHES
