"""Files to documents, in slices that the input alone decides."""

import glob
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import orjson
import zstandard

from longmlm.data.config import Source
from longmlm.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the corpus: `origin` is its path and byte offset, `source` the number of its source."""

    text: str
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
    """The records that begin at uncompressed bytes start <= offset < end of a file."""

    path: str
    start: int
    end: int
    source: int


Slice = tuple[Span, ...]


def files_of(source: Source) -> list[Path]:
    """Returns the files that the source's paths and globs name, each once, sorted within a glob.

    Raises DataError for a path that names nothing, or a file of a kind that cannot be read.
    """
    files: dict[Path, None] = {}
    for pattern in source.files:
        named = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
        found = sorted(Path(name) for name in named if Path(name).is_file())
        if not found:
            raise DataError(f"{pattern}: no such file; paths are taken from the folder you stand in")
        files |= dict.fromkeys(found)
    for path in files:
        if kind_of(path) not in (".txt", ".jsonl"):
            raise DataError(f"{path}: text is read from .txt and .jsonl files, plain, .gz or .zst")
    return list(files)


def kind_of(path: Path) -> str:
    """Returns the file's ending without that of a compression."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix


def open_bytes(path: Path, offset: int = 0) -> io.BufferedIOBase:
    """Opens a plain, .gz or .zst file as a buffered stream of its uncompressed bytes from `offset` on."""
    if path.suffix not in (".gz", ".zst"):
        plain = path.open("rb")
        plain.seek(offset)
        return plain
    if path.suffix == ".gz":
        stream: io.BufferedIOBase = gzip.open(path)
    else:
        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
        stream = io.BufferedReader(cast(io.RawIOBase, reader), CHUNK_BYTES)
    while offset:
        offset -= len(stream.read(min(offset, CHUNK_BYTES)))
    return stream


def size_of(path: Path) -> int:
    """Returns the number of uncompressed bytes; raises DataError when the file cannot be read to its end."""
    if path.suffix not in (".gz", ".zst"):
        return path.stat().st_size
    try:
        if path.suffix == ".zst":
            return _zst_size(path)
        with open_bytes(path) as stream:
            return sum(len(chunk) for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path} cannot be uncompressed ({error}): fetch it again, or leave it out") from error


def _zst_size(path: Path) -> int:
    """Counts frame by frame, because zstandard's stream reader takes a file that is cut short for a whole one."""
    size, frame = 0, None
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES >> 4):
            while chunk:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                size += len(frame.decompress(chunk))
                chunk, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame:
        raise EOFError("it ends in the middle of a frame")
    return size


def plan_slices(sources: Sequence[Source], slice_bytes: int) -> list[Slice]:
    """Cuts the sources, in order, into slices of about `slice_bytes`: a large file gives several, small ones share."""
    slices: list[Slice] = []
    spans: list[Span] = []
    room = slice_bytes
    for number, source in enumerate(sources):
        for path in files_of(source):
            size, start, whole = size_of(path), 0, kind_of(path) == ".txt"
            if whole and not size:
                spans.append(Span(str(path), 0, 0, number))  # a document all the same, to be set aside as empty
            while start < size:
                end = size if whole else min(size, start + room)
                spans.append(Span(str(path), start, end, number))
                room -= end - start
                start = end
                if room <= 0:
                    slices.append(tuple(spans))
                    spans, room = [], slice_bytes
    return [*slices, tuple(spans)] if spans else slices


def read_slice(spans: Slice, sources: Sequence[Source]) -> Iterator[Document | SetAside]:
    """Yields every record that begins in the slice, as a document or as what keeps it from being one."""
    for span in spans:
        source = sources[span.source]
        for offset, record in _records(span):
            origin = f"{span.path}:{offset}"
            text = _text_of(record, source.text_field if kind_of(Path(span.path)) == ".jsonl" else None)
            if isinstance(text, SetAside):
                yield SetAside(origin, text.reason, span.source)
            elif not text.strip():
                yield SetAside(origin, "empty", span.source)
            else:
                yield Document(text, origin, span.source)


def _records(span: Span) -> Iterator[tuple[int, bytes]]:
    path = Path(span.path)
    if kind_of(path) == ".txt":
        with open_bytes(path) as stream:
            yield 0, stream.read()
        return
    with open_bytes(path, max(0, span.start - 1)) as stream:
        offset = span.start
        if offset:
            offset += len(stream.readline()) - 1
        while offset < span.end and (line := stream.readline()):
            if line.strip().removeprefix(BYTE_ORDER_MARK):
                yield offset, line
            offset += len(line)


def _text_of(record: bytes, field: str | None) -> str | SetAside:
    try:
        text = record.removeprefix(BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError:
        return SetAside("", "bad UTF-8", 0)
    if field is None:
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return SetAside("", "broken JSON", 0)
    if not isinstance(value, dict) or field not in value:
        return SetAside("", f"no field {field!r}", 0)
    return value[field] if isinstance(value[field], str) else SetAside("", f"field {field!r} is no text", 0)


def is_held_out(text: str, fraction: float) -> bool:
    """Tells the side of a document by the hash of its text, so that exact copies always stand on one side."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
