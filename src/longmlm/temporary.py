"""Temporary names of what is not complete: longmlm empties or removes only what it has made itself.

A temporary folder bears a mark, a file that is created first and removed last, by which one that a killed process left
is known. A folder or a link of the user that happens to have the name is refused and stays as it is.
"""

import os
import secrets
import shutil
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from longmlm.errors import FolderError

PARTIAL = ".partial"
MARK = ".longmlm-temporary"
LOCK = ".lock"  # the file of processes.exclusive_lock


def partial_of(folder: Path) -> Path:
    """Returns the path next to `folder` at which its content is written until it is complete."""
    return folder.with_name(folder.name + PARTIAL)


def check_writable(folder: Path) -> None:
    """Raises FolderError unless a folder can be written at this path: the one that is there, or a new one.

    Raises OSError, which names the path, for a name that the file system does not take.
    """
    path = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not path.exists():
        raise FolderError(
            f"{path} is a link to {path.readlink()}, which does not exist: remove the link or name another output"
        )
    if not path.is_dir():
        raise FolderError(f"{path} is a file: remove it or name another output")
    if not os.access(path, os.W_OK | os.X_OK):
        raise FolderError(f"{path} is not writable for this user: name another output or change its permissions")
    with suppress(FileNotFoundError):
        Path(f"{folder.absolute()}{PARTIAL}").lstat()


def is_temporary(folder: Path) -> bool:
    """Returns whether a folder may be emptied: it is no link, and bears the mark or holds nothing but an empty lock."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return _is_file(folder / MARK) or all(
        path.name == LOCK and _is_file(path) and path.stat().st_size == 0 for path in folder.iterdir()
    )


def check_temporary(folder: Path) -> None:
    """Raises FolderError unless a temporary folder can be made here, or was: nothing of the user's is in its place."""
    if os.path.lexists(folder) and not is_temporary(folder):
        raise FolderError(
            f"{folder} is in the way: longmlm needs this name for a temporary folder, and removes only those that it "
            "has marked; move it away, or name another output"
        )


def claim(folder: Path) -> None:
    """Creates a temporary folder, or takes over the one that a killed process left; raises as `check_temporary`."""
    check_temporary(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark(folder)


def mark(folder: Path) -> None:
    """Marks a folder of longmlm's as one that may be removed."""
    with suppress(FileExistsError):
        (folder / MARK).open("x").close()


def unmark(folder: Path) -> None:
    """Removes the mark of a folder that is complete."""
    (folder / MARK).unlink(missing_ok=True)


def empty(folder: Path, kept: Collection[str] = (MARK, LOCK)) -> None:
    """Removes what a folder holds except the files named in `kept`; what its links lead to stays."""
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def discard(folder: Path) -> None:
    """Removes a temporary folder, its mark last; anything else with that name stays."""
    if is_temporary(folder):
        with suppress(OSError):
            empty(folder)
            shutil.rmtree(folder)


@contextmanager
def replaced_file(path: Path, aside: Path | None = None) -> Iterator[Path]:
    """Yields a new file to write, which takes the place of `path` if the block succeeds and is removed otherwise.

    A reader of `path` sees the old file or the new one, never a part of it. Processes on any machine may write the same
    file at once if the new one is in `aside`, a folder on the same disk, where each has a name of its own. Raises
    FolderError if a link or a folder has the name of the new file.
    """
    own = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}" if aside else "longmlm"
    partial = (aside or path.parent) / f"{path.name}.{own}{PARTIAL}"
    if _is_file(partial):  # a killed process left it
        partial.unlink()
    try:
        partial.open("x").close()
    except FileExistsError:
        raise FolderError(f"{partial} was not made by longmlm, which needs this name: move it away") from None
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _is_file(path: Path) -> bool:
    """Returns whether a file, no link to one, has this path."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def leads_out(path: Path, folder: Path) -> bool:
    """Returns whether a path, once all links are followed, is outside the folder; the folder itself may be a link.

    A snapshot in the cache of the Hugging Face Hub links to the cache's own files, which do not count as outside.
    """
    real, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))  # Path.resolve raises for a loop
    caches = (above.parent for above in real.parents if above.name == "snapshots")
    blobs = (cache / "blobs" for cache in caches if cache.name.startswith("models--"))
    return not any(target.is_relative_to(place) for place in (real, *blobs))


def is_own_file(path: Path, header: str) -> bool:
    """Returns whether a text file starts with the line that longmlm begins such files with."""
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(header)


def check_own_file(path: Path, header: str) -> None:
    """Raises FolderError if a file that longmlm did not write would be replaced."""
    if os.path.lexists(path) and not is_own_file(path, header):
        raise FolderError(f"{path} was not written by longmlm and would be overwritten: name another output")


def move_aside(folder: Path, names: Collection[str]) -> Path:
    """Renames a folder to FOLDER.earlier, in place of one moved there before, and returns that path.

    Raises FolderError as `remove_with` does.
    """
    earlier = folder.with_name(f"{folder.name}.earlier")
    remove_with(earlier, names)
    return folder.rename(earlier)


def remove_with(folder: Path, names: Collection[str]) -> None:
    """Removes a folder that holds one of the named files, by which longmlm knows it as its own, or nothing.

    These files are removed last, so that a partly removed folder is still recognised. Raises FolderError for any other
    folder and for a link, which stay.
    """
    if not os.path.lexists(folder):
        return
    is_own = any((folder / name).is_file() for name in names) or (folder.is_dir() and not any(folder.iterdir()))
    if folder.is_symlink() or not is_own:
        raise FolderError(f"{folder} was not made by longmlm, which needs this name: move it away")
    empty(folder, names)
    shutil.rmtree(folder)


def remove_inside(folder: Path, name: str) -> None:
    """Removes a folder below `folder`, unless a link leads from there to another place."""
    if not leads_out(folder / name, folder):
        shutil.rmtree(folder / name, ignore_errors=True)
