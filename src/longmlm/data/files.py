"""Files of a corpus: which files the settings name, and their uncompressed bytes and lines."""

import bz2
import glob
import gzip
import io
import lzma
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from backports import zstd

from longmlm.errors import AbsentError, DataError, counted, system_error
from longmlm.hubs import storage
from longmlm.hubs.datasets import SAVED
from longmlm.hubs.storage import AnyPath, located
from longmlm.settings.prepare import COMPRESSED
from longmlm.temporary import LOCK, MARK, is_own_file

CHUNK_BYTES = 1 << 20
MAX_ENTRIES = 10_000  # of a folder that are looked at for a remedy
ANY_WINDOW = {zstd.DecompressionParameter.window_log_max.value: 31}  # zstd --long=31; by default a decoder stops at 27
OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
KINDS = {  # each ending, and the one as which it is read
    ".txt": ".txt",
    ".md": ".txt",
    ".jsonl": ".jsonl",
    ".ndjson": ".jsonl",
    ".json": ".json",
    ".csv": ".csv",
    ".tsv": ".csv",
    ".parquet": ".parquet",
}
REMEDIES = {
    ".tab": "give it the ending .tsv",
    ".text .markdown": "give it the ending .txt",
    ".lzma .lz4 .z .br .7z .zip .tar .tgz .rar": "unpack it, or compress it with gzip or zstd",
    ".pdf .doc .docx .odt .rtf .epub .html .htm .xml .xlsx .xls .tex": "save its text as .txt, .jsonl or .csv",
    ".arrow .feather": "name the folder of a saved dataset in `dataset`, or save the table as .parquet",
    " ".join((*KINDS, *COMPRESSED)): "name endings in small letters, and leave Parquet files uncompressed",
}

# files that longmlm wrote: a pattern such as **/*.jsonl that reaches them does not make them a corpus
STAMPED = ("manifest.json", "evaluation.json", "comparison.json", "downstream.json", "record.json", "summary.json")
STAMP, STAMP_BYTES = b'"longmlm"', 200  # a key near the beginning of such a file
NAMED = ("longmlm.json", "trial.toml", MARK)
SET_ASIDE = "set_aside"


def files_of(patterns: Sequence[str]) -> list[AnyPath]:
    """Returns the files that paths, URLs and globs name, each file once whatever its links, sorted within a glob.

    Files that longmlm wrote, and that a wildcard reaches, are left out. Raises DataError for a folder, a path or glob
    without a file, an unknown kind of file, a name that is not UTF-8, or a server that cannot be used.
    """
    files: dict[object, AnyPath] = {}
    for pattern in patterns:
        if storage.is_url(pattern):
            for path in storage.files_at(pattern):
                _check_name(path)
                files.setdefault(str(path), path)
            continue
        names = [pattern] if Path(pattern).is_file() else _matches(pattern)
        paths = sorted(path for path in map(Path, names) if path.is_file())
        if not paths:
            _refuse_folder(pattern)
            raise AbsentError(f"{_printable(pattern)}: no such file; relative paths start from the current folder")
        if own := _own_files(paths, pattern):
            paths = [path for path in paths if path not in own]
            if not paths:
                raise DataError(f"{_printable(pattern)}: it matches only files that longmlm wrote, such as {min(own)}")
        for path in paths:
            _check_name(path)
            files.setdefault(_identity(path), path)
    return list(files.values())


def left_out(patterns: Sequence[str]) -> str:
    """Returns a line that names files written by longmlm that the globs match and that are left out; empty if none."""
    reached = {pattern: map(Path, _matches(pattern)) for pattern in patterns if not Path(pattern).is_file()}
    own = sorted(path for pattern, paths in reached.items() for path in _own_files(paths, pattern) if path.is_file())
    return f"left out: {counted(len(own), 'file')} that longmlm wrote, such as {own[0]}" if own else ""


def _own_files(paths: Iterable[Path], pattern: str) -> set[Path]:
    """Returns those of the paths, which match a pattern, that are in a folder that longmlm wrote: a result of a stage.

    Folders that the pattern names without a wildcard count as the user's: a file in them was meant.
    """
    parts = Path(pattern).parts
    num_named = next(
        (index for index, part in enumerate(parts) if any(wildcard in part for wildcard in "*?[")), len(parts)
    )
    is_own = cache(_is_own)
    return {path for path in paths if any(is_own(folder) for folder in path.parents if len(folder.parts) > num_named)}


def _is_own(folder: Path) -> bool:
    return (
        any(os.path.lexists(folder / name) for name in NAMED)
        or any(_is_stamped(folder / name) for name in STAMPED)
        or is_own_file(folder / "settings.toml", "# longmlm ")  # a run in training
        or (folder.name == SET_ASIDE and (folder.parent / LOCK).is_file())  # of downstream
    )


def _is_stamped(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return STAMP in file.read(STAMP_BYTES)


def _matches(pattern: str) -> Iterator[str]:
    """Yields what glob.glob(pattern, recursive=True) yields, but enters each folder once: links may form a cycle.

    The folders that the pattern begins with are taken by their names if they exist, whatever characters these hold.
    """
    parts = Path(pattern).parts
    num_folders = next((num for num in range(len(parts) - 1, 0, -1) if Path(*parts[:num]).is_dir()), 0)
    parts = (*map(glob.escape, parts[:num_folders]), *parts[num_folders:])
    pattern = str(Path(*parts))
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


def _refuse_folder(pattern: str) -> None:
    """Raises DataError if the pattern names folders only; the remedy names the kinds of files in the first one."""
    folder = next((path for path in map(Path, (pattern, *_matches(pattern))) if path.is_dir()), None)
    if folder is None:
        return
    entries = islice(folder.rglob("*"), MAX_ENTRIES)
    files = [path.relative_to(folder) for path in entries if _is_corpus_file(path) and path.is_file()]
    below = "**/" if any(len(path.parts) > 1 for path in files) else ""
    globs = sorted({f"{folder}/{below}*{''.join(path.suffixes[-1 - (path.suffix in COMPRESSED) :])}" for path in files})
    remedy = f"write {' and '.join(globs)}" if globs else f"it has no {', '.join(KINDS)} file"
    if any((folder / name).is_file() for name in SAVED):
        remedy = "it holds a dataset: set dataset and split instead, under [[prepare.recipe.sources]]"
    raise DataError(_printable(f"{folder} is a folder: {remedy}"))


def _identity(path: Path) -> tuple[int, int]:
    with readable(path):
        status = path.stat()
    return status.st_dev, status.st_ino


def _is_corpus_file(path: AnyPath) -> bool:
    return ending_of(path) in KINDS and not (kind_of(path) == ".parquet" and path.suffix in COMPRESSED)


def _check_name(path: AnyPath) -> None:
    if not _is_corpus_file(path):
        suffix = path.suffix.lower()
        remedy = next((remedy for suffixes, remedy in REMEDIES.items() if suffix in suffixes.split()), None)
        raise DataError(
            f"{_printable(path)}: sources are {', '.join(KINDS)} files, all but .parquet plain or "
            f"{', '.join(COMPRESSED)}" + (f": {remedy}" if remedy else "")
        )
    if _printable(path) != str(path):
        raise DataError(f"{_printable(path)}: the file's name is not UTF-8: rename it")


def _printable(path: AnyPath | str) -> str:
    return os.fsencode(str(path)).decode(errors="backslashreplace")


@contextmanager
def readable(path: AnyPath | str) -> Iterator[None]:
    """Raises DataError when the block cannot read the file, because it was removed, for example, or is damaged."""
    try:
        with storage.reading(str(path)):
            yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, pa.ArrowException) as error:
        if found := system_error(error, Path(str(path))):
            raise found from error
        if isinstance(error, OSError) and error.errno:
            problem = f"cannot be read ({error.strerror}): restore it and run the same command again"
        else:
            problem = f"is damaged ({error}): download it again or leave it out"
        raise DataError(f"{_printable(path)} {problem}") from error


def ending_of(path: AnyPath) -> str:
    """Returns the file's ending without that of its compression, such as .ndjson of a.ndjson.gz."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def kind_of(path: AnyPath) -> str:
    """Returns the ending as which a file is read, such as .jsonl for a.ndjson.gz."""
    return KINDS.get(ending := ending_of(path), ending)


def open_bytes(path: AnyPath) -> io.BufferedIOBase:
    """Opens the uncompressed bytes of a file; those of all members of a .gz file, or all frames of a .zst file."""
    opened: Any = path if isinstance(path, Path) else storage.open_bytes(path)
    if path.suffix in OPENERS:
        return OPENERS[path.suffix](opened)
    if path.suffix == ".zst":
        return io.BufferedReader(cast(Any, zstd.open(opened, options=ANY_WINDOW)), CHUNK_BYTES)
    return path.open("rb") if isinstance(path, Path) else opened


def count_bytes(path: AnyPath) -> int:
    """Returns the number of uncompressed bytes."""
    if path.suffix not in COMPRESSED:
        return path.stat().st_size
    with open_bytes(path) as stream:
        return sum(map(len, iter(lambda: stream.read(CHUNK_BYTES), b"")))


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of a file in bytes or records, and the bytes of text in each of these units.

    It may be cut at `borders`, which increase, or anywhere if there are none.
    """

    length: int
    unit_bytes: float = 1.0
    borders: Iterator[int] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a file that begin at start <= offset < end, counted in bytes or records.

    `source` is the number of the file's source, `size` the number of bytes of text. `first` is the number of the file's
    first record in a dataset of several files.
    """

    path: str
    start: int
    end: int
    source: int
    size: int
    first: int = 0


class Lines:
    """The lines of a stream; `offset` is where the next one begins."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self.offset = stream, 0

    def read(self) -> bytes:
        """Returns the next line with its end; nothing at the end of the file."""
        line = self._stream.readline()
        self.offset += len(line)
        return line


@contextmanager
def lines_of(span: Span) -> Iterator[Lines]:
    """Opens the lines of a file from the first one on that begins at or after `span.start`.

    A compressed file is decompressed from its beginning.
    """
    with open_bytes(located(span.path)) as stream:
        lines = Lines(stream)
        if span.start:
            lines.offset = stream.seek(span.start - 1)
            lines.read()  # from the byte before: nothing else, if it ends a line
        yield lines
