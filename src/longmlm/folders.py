"""Folders that are complete or absent: written under another name, hashed, synced, renamed, verified when read."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longmlm.errors import FolderError

MANIFEST = "manifest.json"
PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a sealed folder, as its manifest lists it."""

    bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    """Returns the hexadecimal SHA-256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_of(path: Path) -> FileEntry:
    """Returns the file's size and hash as a manifest lists them."""
    return FileEntry(path.stat().st_size, sha256_of(path))


def partial_of(folder: Path) -> Path:
    """Returns the path next to `folder` at which its content is written until it is complete."""
    return folder.with_name(folder.name + PARTIAL)


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:  # Any: JSON of every kind
    """Writes `content` so that a reader sees the old file or the new one, never a part of it."""
    partial = partial_of(path)
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sync(partial)
    partial.replace(path)


def seal(partial: Path, folder: Path, about: Mapping[str, Any] | None = None) -> None:
    """Turns `partial` into `folder`: hashes and syncs every file, writes the manifest, renames.

    The manifest holds `about` and `files`, a map from relative path to size in bytes and SHA-256. Every file gets the
    permissions that the user's umask gives to new files.
    """
    paths = sorted(path for path in partial.rglob("*") if path.is_file() and path != partial / MANIFEST)
    files = {path.relative_to(partial).as_posix(): asdict(entry_of(path)) for path in paths}
    for path in paths:
        sync(path)
    write_json(partial / MANIFEST, {**(about or {}), "files": files})
    for path in paths:
        path.chmod((partial / MANIFEST).stat().st_mode)  # safetensors lets only the owner read its files
    for parent in {path.parent for path in paths} | {partial}:
        sync(parent)
    partial.rename(folder)
    sync(folder.parent)


@contextmanager
def new_folder(folder: Path, about: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yields an empty folder to write into, which becomes `folder` if the block succeeds and is removed otherwise.

    Raises FolderError if `folder` already exists, or if another process is writing it.
    """
    check_absent(folder)
    partial = partial_of(folder)
    partial.mkdir(parents=True, exist_ok=True)
    with _locked(partial):
        try:
            check_absent(folder)  # another process may have finished it meanwhile
            for path in partial.iterdir():  # what a killed process left behind
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield partial
            seal(partial, folder, about)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder itself, so that no lock file is left in it or next to it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders: there, two writers are on their own
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderError(f"{folder} is being written by another process: wait for it, or stop it") from None
        yield
    finally:
        os.close(descriptor)


def check_absent(folder: Path) -> None:
    """Raises FolderError if anything exists at `folder`."""
    if folder.exists():
        raise FolderError(f"{folder} already exists: remove it or name another folder")


def read_manifest(folder: Path) -> dict[str, Any]:  # Any: what the folder's writer notes besides `files`
    """Returns the manifest of a complete folder; raises FolderError if there is none, or not a proper one."""
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file, not a folder" if folder.exists() else f"{folder}: no such folder")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: it was not written completely, or is something else") from None
    except ValueError:
        raise FolderError(f"{path} is damaged: it is no JSON") from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise FolderError(f"{path} lists no files: the folder is something else")
    for name, entry in files.items():
        if name.startswith("/") or ".." in Path(name).parts:
            raise FolderError(f"{path} names a file outside its folder ({name!r}): do not use it")
        if not isinstance(entry, dict) or entry.keys() != FileEntry.__dataclass_fields__.keys():
            raise FolderError(f"{path} is damaged: files.{name} does not hold exactly bytes and sha256")
    return manifest


def verify(folder: Path, below: str = "") -> dict[str, Any]:  # Any: as read_manifest
    """Returns the manifest of a folder; raises FolderError unless every file has the size and SHA-256 listed there.

    With `below`, only the files whose names start with it are checked.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        if not name.startswith(below):
            continue
        path = folder / name
        if not path.is_file():
            raise FolderError(f"{path} is missing")
        if asdict(entry_of(path)) != entry:
            raise FolderError(f"{path} is damaged: its content differs from the manifest")
    return manifest


def check_replaceable(folder: Path, names: Collection[str]) -> None:
    """Raises FolderError when `folder` is a file, or a folder that holds anything else than the named files."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: remove it or name another folder")
    others = sorted(path.name for path in folder.iterdir() if path.name not in names) if folder.exists() else []
    if others:
        raise FolderError(f"{folder} holds other files ({others[0]}), which would be lost: name another folder")


@contextmanager
def replaced_folder(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yields an empty folder to write into; it replaces `folder` when the block succeeds, and is removed otherwise.

    Until then an earlier `folder`, of which only the named files may be replaced, stays as it is.
    """
    check_replaceable(folder, names)
    folder = folder.resolve()
    partial, earlier = partial_of(folder), partial_of(folder.with_name(f"{folder.name}.earlier"))
    if earlier.exists() and not folder.exists():  # killed between the two renames below
        earlier.rename(folder)
    for leftover in (partial, earlier):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.iterdir():
            sync(path)
        if folder.exists():
            folder.rename(earlier)
        partial.rename(folder)
    except BaseException:
        if earlier.exists() and not folder.exists():
            earlier.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(folder.parent)
    shutil.rmtree(earlier, ignore_errors=True)
