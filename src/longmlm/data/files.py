"""Paths and globs to files, plain or compressed, and their bytes."""

import glob
import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import zstandard

from longmlm.errors import DataError

CHUNK_BYTES = 1 << 20
COMPRESSED = (".gz", ".zst")
KINDS = (".txt", ".jsonl", ".csv", ".parquet")


def files_of(patterns: Sequence[str]) -> list[Path]:
    """Returns the files that the paths and globs name, each once, sorted within a glob.

    Raises DataError for a path that names nothing, or a file of a kind that cannot be read.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        named = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
        found = sorted(Path(name) for name in named if Path(name).is_file())
        if not found:
            raise DataError(f"{pattern}: no such file; paths are taken from the folder you stand in")
        files |= dict.fromkeys(found)
    for path in files:
        if kind_of(path) not in KINDS or (kind_of(path) == ".parquet" and path.suffix in COMPRESSED):
            raise DataError(f"{path}: text is read from .txt, .jsonl and .csv, plain, .gz or .zst, and from .parquet")
    return list(files)


def kind_of(path: Path) -> str:
    """Returns the file's ending without that of a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def open_bytes(path: Path, offset: int = 0) -> io.BufferedIOBase:
    """Opens a plain, .gz or .zst file as a buffered stream of its uncompressed bytes from `offset` on."""
    if path.suffix not in COMPRESSED:
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
    if path.suffix not in COMPRESSED:
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
