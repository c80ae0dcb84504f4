"""Files of a corpus: which files the settings name, and their uncompressed bytes and lines."""

import glob
import io
import os
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from longmlm.errors import DataError

CHUNK_BYTES = 1 << 20
COMPRESSED_BYTES = 1 << 14  # read at once: text is seldom compressed a thousandfold, so that memory stays bounded
FRAME_SPACING_BYTES = 1 << 20
COMPRESSED = (".gz", ".zst")
KINDS = (".txt", ".jsonl", ".csv", ".parquet")


def files_of(patterns: Sequence[str]) -> list[Path]:
    """Returns the files that the paths and globs name, each file once, sorted within a glob.

    Links to the same file, and several paths to it, count as one file. Raises DataError for a path or glob without a
    file, for a file of a kind that cannot be read, and for a name that is not UTF-8.
    """
    files: dict[tuple[int, int], Path] = {}
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else _matches(pattern)
        paths = sorted(path for path in map(Path, names) if path.is_file())
        if not paths:
            raise DataError(f"{_printable(pattern)}: no such file; relative paths start from the current folder")
        for path in paths:
            _check_name(path)
            files.setdefault(_identity(path), path)
    return list(files.values())


def _matches(pattern: str) -> Iterator[str]:
    """Yields what glob.glob(pattern, recursive=True) yields, but enters each folder once: links may form a cycle."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    split = parts.index("**")
    below = parts[split + 1 :] or ("*",)
    folders = deque(glob.glob(str(Path(*parts[:split]))))
    entered: set[tuple[int, int]] = set()
    while folders:
        folder = folders.popleft()
        if not Path(folder).is_dir() or (identity := _identity(Path(folder))) in entered:
            continue
        entered.add(identity)
        yield from _matches(str(Path(glob.escape(folder), *below)))
        folders += sorted(glob.glob(str(Path(glob.escape(folder), "*"))))


def _identity(path: Path) -> tuple[int, int]:
    with readable(path):
        status = path.stat()
    return status.st_dev, status.st_ino


def _check_name(path: Path) -> None:
    if kind_of(path) not in KINDS or (kind_of(path) == ".parquet" and path.suffix in COMPRESSED):
        raise DataError(
            f"{_printable(path)}: sources are .txt, .jsonl and .csv files, plain, .gz or .zst, and .parquet files"
        )
    if _printable(path) != str(path):
        raise DataError(f"{_printable(path)}: the file's name is not UTF-8: rename it")


def _printable(path: Path | str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Raises DataError when the block cannot open or read the file, for example because it was removed."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{_printable(path)} cannot be read ({error.strerror or error}): restore it and run the same command again"
        ) from error


def kind_of(path: Path) -> str:
    """Returns the file's extension without that of a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


@dataclass(frozen=True, slots=True)
class Frame:
    """A position in a file from which it can be decompressed, and the number of uncompressed bytes before it."""

    position: int = 0
    offset: int = 0


START = Frame()


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a file that begin at start <= offset < end, counted in bytes or records; `size` is in bytes.

    `source` is the number of the file's source, `frame` the last one before `start` in a compressed file.
    """

    path: str
    start: int
    end: int
    source: int
    size: int
    frame: Frame = START


def measure(path: Path) -> tuple[int, tuple[Frame, ...]]:
    """Returns the number of uncompressed bytes and some frames; raises DataError for a damaged compressed file."""
    if path.suffix not in COMPRESSED:
        return path.stat().st_size, (START,)
    size, frames = 0, [START]
    for position, chunk in decompressed(path):
        if position > frames[-1].position and size >= frames[-1].offset + FRAME_SPACING_BYTES:
            frames.append(Frame(position, size))
        size += len(chunk)
    return size, tuple(frames)


def decompressed(path: Path, position: int = 0) -> Generator[tuple[int, bytes], None, None]:
    """Yields the content of a .gz or .zst file in chunks, each after the position of the frame that it belongs to.

    Reads on over the end of a frame (of a member, in .gz). Raises DataError for a file that is damaged or cut short.
    """
    frame: Any = None  # of zlib or zstandard, whose decompressors have the same methods
    try:
        with path.open("rb") as file:
            file.seek(position)
            while chunk := file.read(COMPRESSED_BYTES):
                while chunk := (chunk if frame else chunk.lstrip(b"\0")):  # a .gz file may be padded with zeros
                    if frame is None:
                        frame, position = _decompressor(path), file.tell() - len(chunk)
                    yield position, frame.decompress(chunk)
                    chunk, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if frame:
            raise EOFError("it ends too early")
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path} cannot be decompressed ({error}): download it again or leave it out") from error


def _decompressor(path: Path) -> Any:
    return zlib.decompressobj(31) if path.suffix == ".gz" else zstandard.ZstdDecompressor().decompressobj()


class _Decompressed(io.RawIOBase):
    """Chunks as a stream."""

    def __init__(self, chunks: Generator[tuple[int, bytes], None, None]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = memoryview(chunk[1])
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._chunks.close()
        super().close()


def open_bytes(path: Path, offset: int = 0, frame: Frame = START) -> io.BufferedIOBase:
    """Opens the uncompressed bytes of a file from `offset` on; `frame` is one before it, to save time."""
    if path.suffix not in COMPRESSED:
        plain = path.open("rb")
        plain.seek(offset)
        return plain
    stream = io.BufferedReader(_Decompressed(decompressed(path, frame.position)), CHUNK_BYTES)
    skip(stream, offset - frame.offset)
    return stream


def skip(stream: io.BufferedIOBase, num_bytes: int) -> int:
    """Reads so many bytes, or to the end of the stream, and returns their number."""
    skipped = 0
    while skipped < num_bytes and (chunk := stream.read(min(num_bytes - skipped, CHUNK_BYTES))):
        skipped += len(chunk)
    return skipped
