"""Files to a folder that is whole or absent: written aside, hashed, synced, renamed, verified on reading."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


def partial_of(folder: Path) -> Path:
    """Returns the folder beside `folder` in which its content is written until it is whole."""
    return folder.with_name(folder.name + PARTIAL)


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content` so that a reader sees the old file or the new one, never a part of it."""
    aside = path.with_name(path.name + PARTIAL)
    aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sync(aside)
    aside.replace(path)


def seal(partial: Path, folder: Path, about: Mapping[str, Any] | None = None) -> None:
    """Turns `partial` into `folder`: hashes every file, writes the manifest last, syncs, renames.

    All files can be read by whom the user lets read new files.

    The manifest holds `about` and `files`, a map from relative path to size in bytes and SHA-256.
    """
    paths = sorted(path for path in partial.rglob("*") if path.is_file() and path != partial / MANIFEST)
    files = {
        path.relative_to(partial).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in paths
    }
    for path in paths:
        sync(path)
    write_json(partial / MANIFEST, {**(about or {}), "files": files})
    for path in paths:
        path.chmod((partial / MANIFEST).stat().st_mode)  # safetensors lets nobody else read its files
    for parent in {path.parent for path in paths} | {partial}:
        sync(parent)
    partial.rename(folder)
    sync(folder.parent)


@contextmanager
def new_folder(folder: Path, about: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yields an empty folder to write into; it becomes `folder` when the block ends well, and is gone otherwise.

    Raises FolderError when `folder` exists already.
    """
    check_absent(folder)
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        seal(partial, folder, about)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_absent(folder: Path) -> None:
    """Raises FolderError when there is something at `folder` that writing would replace."""
    if folder.exists():
        raise FolderError(f"{folder} exists already: remove it or name another folder")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a whole folder; raises FolderError when there is none."""
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file, not a folder" if folder.exists() else f"{folder}: no such folder")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: it was not written to its end, or is something else") from None
    except ValueError:
        raise FolderError(f"{folder / MANIFEST} is damaged: it is no JSON") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise FolderError(f"{folder / MANIFEST} lists no files: the folder is something else")
    if outside := [name for name in manifest["files"] if name.startswith("/") or ".." in Path(name).parts]:
        raise FolderError(f"{folder / MANIFEST} names a file outside of its folder ({outside[0]!r}): do not use it")
    return manifest


def verify(folder: Path, below: str = "") -> dict[str, Any]:
    """Returns the manifest after every file in it was found with its size and SHA-256; else raises FolderError.

    With `below`, only the files whose names begin so are looked at.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        if not name.startswith(below):
            continue
        path = folder / name
        if not path.is_file():
            raise FolderError(f"{path} is missing")
        if {"bytes": path.stat().st_size, "sha256": sha256_of(path)} != expected:
            raise FolderError(f"{path} is damaged: its content is not what its manifest says")
    return manifest
