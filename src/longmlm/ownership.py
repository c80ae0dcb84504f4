"""What longmlm may read, replace and remove: what lies in a given folder, and what it knows as its own."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from longmlm.errors import FolderError


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
        raise FolderError(f"{path} is not of an earlier run, and would be replaced: name another output")


def move_aside(folder: Path, names: Collection[str]) -> Path:
    """Renames a folder to FOLDER.earlier, in place of one moved there before, and returns that path.

    Raises FolderError as `remove_with` does.
    """
    earlier = folder.with_name(f"{folder.name}.earlier")
    remove_with(earlier, names)
    return folder.rename(earlier)


def remove_with(folder: Path, names: Collection[str]) -> None:
    """Removes a folder that holds one of the named files, by which longmlm knows it as its own, or nothing.

    Raises FolderError for any other folder and for a link, which stay.
    """
    if not os.path.lexists(folder):
        return
    is_own = any((folder / name).is_file() for name in names) or (folder.is_dir() and not any(folder.iterdir()))
    if folder.is_symlink() or not is_own:
        raise FolderError(f"{folder} was not made by longmlm, which needs this name: move it away")
    shutil.rmtree(folder)


def remove_inside(folder: Path, name: str) -> None:
    """Removes a folder below `folder`, unless a link leads from there to another place."""
    if not leads_out(folder / name, folder):
        shutil.rmtree(folder / name, ignore_errors=True)
