"""Folders that are complete or absent: written under a temporary name, hashed, synced, renamed, verified when read."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longmlm.errors import FolderError, naming
from longmlm.processes import lock
from longmlm.temporary import (
    MARK,
    PARTIAL,
    check_temporary,
    check_writable,
    claim,
    discard,
    empty,
    is_temporary,
    mark,
    partial_of,
    replaced_file,
    unmark,
)

GB = 1e9
MANIFEST = "manifest.json"
EARLIER = f".earlier{PARTIAL}"
MAX_LISTED = 5
SETTLED_NS = 2_000_000_000  # a file changed more recently could change again without a new time
_HASHES: dict[tuple[int, ...], str] = {}  # by device, inode, size and times


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a complete folder, as the manifest lists it."""

    bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    """Returns the hexadecimal SHA-256 of the file's bytes; a file that is unchanged since is not read again."""
    with naming(path), path.open("rb") as file:
        about = os.fstat(file.fileno())
        version = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        if (known := _HASHES.get(version)) is not None:
            return known
        read_ns, sha256 = time.time_ns(), hashlib.file_digest(file, "sha256").hexdigest()
    if read_ns - about.st_ctime_ns > SETTLED_NS:
        _HASHES[version] = sha256
    return sha256


def entry_of(path: Path) -> FileEntry:
    """Returns the file's size and hash."""
    return FileEntry(path.stat().st_size, sha256_of(path))


def free_bytes(folder: Path) -> int:
    """Returns the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def bytes_in(folder: Path) -> int:
    """Returns the bytes of all files in a folder, which need not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes a text so that a reader sees the old file or the new one, never a part of it."""
    with replaced_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
        sync(partial)


def parse_json(text: str | bytes) -> Any:  # any JSON value
    """Returns a JSON value; raises ValueError for what is not JSON, or nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes `content` as JSON, as write_text does."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def seal(partial: Path, folder: Path, about: Mapping[str, object] | None = None) -> None:
    """Turns `partial` into `folder`, which it replaces: hashes and syncs every file, writes the manifest, renames.

    The manifest holds `about` and `files`, a map from relative path to size in bytes and SHA-256.
    """
    manifest, unlisted = partial / MANIFEST, (partial / MANIFEST, partial / MARK)
    paths = sorted(path for path in partial.rglob("*") if path.is_file() and path not in unlisted)
    files = {path.relative_to(partial).as_posix(): asdict(entry_of(path)) for path in paths}
    for path in paths:
        sync(path)
    write_json(manifest, {**(about or {}), "files": files})
    for path in paths:
        path.chmod(manifest.stat().st_mode)  # safetensors lets only the owner read its files, whatever the umask
    for parent in {path.parent for path in paths} | {partial}:
        sync(parent)
    _replace(folder, partial)


def _replace(folder: Path, partial: Path) -> None:
    """Renames `partial` to `folder`. An existing one is moved aside just before, and removed after."""
    earlier = folder.with_name(folder.name + EARLIER)
    try:
        if folder.exists():
            check_temporary(earlier)
            discard(earlier)
            mark(folder)
            folder.rename(earlier)
        partial.rename(folder)
        sync(folder.parent)
    finally:
        finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Removes the earlier folder that a replacement moved aside, or puts it back if nothing took its place."""
    earlier = folder.with_name(folder.name + EARLIER)
    if not folder.exists() and is_temporary(earlier):
        earlier.rename(folder)
    if folder.exists():
        discard(earlier)
        unmark(folder)


@contextmanager
def new_folder(
    folder: Path, about: Mapping[str, object] | None = None, replaces_earlier: bool = False
) -> Iterator[Path]:
    """Yields an empty folder to write into, which becomes `folder` if the block succeeds and is removed otherwise.

    Raises FolderError if `folder` already exists, unless the new one `replaces_earlier`, if another process is writing
    it, or if something that longmlm did not make has the temporary name.
    """
    if replaces_earlier:
        folder = folder.resolve()
        _check_place(folder)
    else:
        check_absent(folder)
    with _partial(folder) as partial:
        if replaces_earlier:
            finish_replacement(folder)  # one that was killed
        else:
            check_absent(folder)  # another process may have finished it meanwhile
        yield partial
        seal(partial, folder, about)


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Yields the empty temporary folder of `folder`, locked for this process, which is removed if the block fails.

    Raises FolderError if another process has it.
    """
    partial = partial_of(folder)
    while True:
        claim(partial)
        descriptor = os.open(partial, os.O_RDONLY)  # not a lock file, which would become a part of the folder
        try:
            lock(descriptor, partial)
            if not (partial.exists() and os.path.samestat(os.fstat(descriptor), partial.stat())):
                continue  # another process has completed it meanwhile
            try:
                empty(partial)
                yield partial
            except BaseException:
                discard(partial)
                raise
            return
        finally:
            os.close(descriptor)


@contextmanager
def rewritten_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder to write into, which is sealed in place of `folder` if the block succeeds."""
    partial = partial_of(folder)
    claim(partial)
    try:
        empty(partial)
        yield partial
        seal(partial, folder)
    finally:
        discard(partial)


def check_absent(folder: Path) -> None:
    """Raises FolderError if anything exists at `folder`, or if no folder can be written there."""
    if folder.exists():
        raise FolderError(f"{folder} already exists: name another folder, or move it away")
    check_writable(folder)
    check_temporary(partial_of(folder))


def read_manifest(folder: Path) -> dict[str, Any]:  # `files`, and whatever else the writer of the folder noted
    """Returns the manifest of a complete folder; raises FolderError if it is missing or damaged."""
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file, not a folder" if folder.exists() else f"{folder}: no such folder")
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: it is incomplete, or longmlm did not write it") from None
    except ValueError:
        raise FolderError(f"{path} is damaged: it is not JSON") from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise FolderError(f"{path} lists no files: the folder is something else")
    for name, entry in files.items():
        if not Path(name).parts or name.startswith("/") or ".." in Path(name).parts:
            raise FolderError(f"{path} names a file outside its folder ({name!r}): do not use it")
        if not isinstance(entry, dict) or entry.keys() != FileEntry.__dataclass_fields__.keys():
            raise FolderError(f"{path} is damaged: files.{name} does not hold exactly bytes and sha256")
    return manifest


def verify(folder: Path, below: str = "") -> dict[str, Any]:  # as read_manifest
    """Returns the manifest; raises FolderError unless the files have the sizes and SHA-256 that it lists.

    With `below`, only the files whose names start with it are read.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        if name.startswith(below):
            path = folder / name
            if not path.is_file():
                raise FolderError(f"{path} is missing")
            if asdict(entry_of(path)) != entry:
                raise FolderError(f"{path} is damaged: its content differs from {MANIFEST}")
    return manifest


def unlisted_note(folder: Path, files: Collection[str]) -> str:
    """Returns a line that names what a complete folder holds beyond the `files` of its manifest; empty if nothing.

    Hidden files and links count too.
    """
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = sorted({path.relative_to(folder).as_posix() for path in paths} - {*files, MANIFEST, MARK})
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    return f"{folder / MANIFEST} does not list {', '.join(names[:MAX_LISTED])}{more}" if names else ""


def check_replaceable(folder: Path, names: Sequence[str]) -> None:
    """Raises FolderError unless `folder` is absent, empty or an earlier result: the first of `names`, and no others.

    Also raises it if a new one cannot be written in its place.
    """
    _check_place(folder)
    held = {path.name for path in folder.iterdir()} - {MARK} if folder.exists() else set()
    if others := sorted(held - set(names)) or (sorted(held) if names[0] not in held else []):
        raise FolderError(f"{folder} holds other files ({others[0]}), which would be lost: name another folder")


def _check_place(folder: Path) -> None:
    """Raises FolderError if a new folder cannot be written in the place of this one."""
    check_writable(folder.resolve().parent if folder.is_dir() else folder)
    for name in (PARTIAL, EARLIER):
        check_temporary(folder.resolve().with_name(folder.resolve().name + name))


@contextmanager
def replaced_folder(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yields an empty folder to write into, which replaces `folder` if the block succeeds and is removed otherwise.

    Raises FolderError as `check_replaceable` does, and while another process replaces the folder.
    """
    check_replaceable(folder, names)
    folder = folder.resolve()
    with _partial(folder) as partial:
        finish_replacement(folder)  # one that was killed
        yield partial
        for path in partial.iterdir():
            sync(path)
        _replace(folder, partial)
