"""What a user may have in the place of a temporary folder or file, and what is left of it."""

from collections.abc import Callable
from pathlib import Path

from longmlm.folders import MANIFEST, write_json
from longmlm.temporary import MARK

MINE = "what the user wrote"


def a_folder(path: Path) -> Path:
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "mine.txt").write_text(MINE)
    (path / ".hidden").write_text(MINE)
    return path


def a_folder_that_looks_complete(path: Path) -> Path:
    a_folder(path)
    write_json(path / MANIFEST, {"files": {}})
    return path


def a_link_to_a_folder(path: Path) -> Path:
    path.symlink_to(a_folder(path.with_name("elsewhere")))
    return path


def a_link_to_a_marked_folder(path: Path) -> Path:
    (a_folder(path.with_name("elsewhere")) / MARK).touch()
    path.symlink_to("elsewhere")
    return path


def a_folder_with_a_link_as_its_mark(path: Path) -> Path:
    (a_folder(path) / MARK).symlink_to("deep/mine.txt")
    return path


def a_folder_with_a_lock_that_is_not_empty(path: Path) -> Path:
    path.mkdir()
    (path / ".lock").write_text(MINE)
    return path


def a_file(path: Path) -> Path:
    path.write_text(MINE)
    return path


def a_link_to_a_file(path: Path) -> Path:
    path.symlink_to(a_file(path.with_name("elsewhere.txt")))
    return path


def a_dangling_link(path: Path) -> Path:
    path.symlink_to("nowhere")
    return path


FOLDERS = (
    a_folder,
    a_folder_that_looks_complete,
    a_link_to_a_folder,
    a_link_to_a_marked_folder,
    a_folder_with_a_link_as_its_mark,
    a_folder_with_a_lock_that_is_not_empty,
    a_file,
    a_link_to_a_file,
    a_dangling_link,
)
FILES = (a_folder, a_link_to_a_folder, a_link_to_a_file, a_dangling_link)
Make = Callable[[Path], Path]


def everything(folder: Path) -> dict[str, str]:
    """Returns what a folder holds: the text of each file, and where each link leads."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
