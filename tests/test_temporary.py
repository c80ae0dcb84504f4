"""Temporary names: nothing of the user's that has such a name is emptied, replaced or removed."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from longmlm import folders
from longmlm.data.corpus import SetAside, write_set_aside
from longmlm.errors import FolderError
from longmlm.folders import (
    MANIFEST,
    new_folder,
    replaced_folder,
    rewritten_folder,
    unlisted_note,
    verify,
    write_text,
)
from longmlm.processes import exclusive_lock
from longmlm.reports.charts import Chart, Series, write_png
from longmlm.temporary import MARK, claim, discard, remove_with, replaced_file
from tests.support.obstacles import (
    FILES,
    FOLDERS,
    MINE,
    Make,
    a_dangling_link,
    a_file,
    a_folder,
    a_link_to_a_file,
    everything,
    names_in,
)


def write_new(folder: Path) -> None:
    with new_folder(folder) as partial:
        (partial / "a.txt").write_text("ours")


def rewrite(folder: Path) -> None:
    with rewritten_folder(folder) as partial:
        (partial / "a.txt").write_text("ours")


def replace(folder: Path) -> None:
    with replaced_folder(folder, ["a.txt"]) as partial:
        (partial / "a.txt").write_text("ours")


@pytest.mark.parametrize("make", FOLDERS)
@pytest.mark.parametrize("write", [write_new, rewrite, replace])
def test_partial_folder_of_the_user_is_refused_and_stays(
    tmp_path: Path, write: Callable[[Path], None], make: Make
) -> None:
    make(tmp_path / "rows.partial")
    before = everything(tmp_path)
    with pytest.raises((FolderError, FileExistsError), match=r"rows\.partial"):
        write(tmp_path / "rows")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("make", FOLDERS)
@pytest.mark.parametrize("write", [rewrite, replace])
def test_folder_of_the_user_with_the_name_of_one_that_is_moved_aside_stays(
    tmp_path: Path, write: Callable[[Path], None], make: Make
) -> None:
    write(tmp_path / "out")
    make(tmp_path / "out.earlier.partial")
    before = everything(tmp_path)
    with pytest.raises(FolderError, match=r"out\.earlier\.partial"):
        write(tmp_path / "out")
    assert everything(tmp_path) == before
    (tmp_path / "out" / "a.txt").unlink()
    (tmp_path / "out" / MANIFEST).unlink(missing_ok=True)
    (tmp_path / "out").rmdir()
    if write is rewrite:
        write(tmp_path / "out")  # nothing is moved aside
        assert before.items() >= {**everything(tmp_path), f"out/{MANIFEST}": before[f"out/{MANIFEST}"]}.items()


@pytest.mark.parametrize("leave", [claim, lambda folder: folder.mkdir()])
@pytest.mark.parametrize("write", [write_new, rewrite, replace])
def test_partial_folder_of_a_killed_process_is_taken_over(
    tmp_path: Path, write: Callable[[Path], None], leave: Make
) -> None:
    leave(tmp_path / "rows.partial")
    if (tmp_path / "rows.partial" / MARK).exists():
        a_folder(tmp_path / "rows.partial" / "left")
        (tmp_path / "rows.partial" / "link").symlink_to(a_folder(tmp_path / "elsewhere"))
    write(tmp_path / "rows")
    found = everything(tmp_path)
    assert {name for name in found if not name.startswith("elsewhere/")} <= {"rows/a.txt", f"rows/{MANIFEST}"}
    assert found["rows/a.txt"] == "ours"
    assert ("elsewhere" in names_in(tmp_path)) == ("elsewhere/deep/mine.txt" in found)


@pytest.mark.parametrize("step", ["sync", "unmark"])
def test_kill_while_a_folder_is_sealed_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(folders, step, killed)
        patch.setattr(folders, "discard", lambda _: None)
        with pytest.raises(RuntimeError, match="killed"):
            write_new(tmp_path / "new")
    if step == "sync":
        assert names_in(tmp_path) == ["new.partial"]
        write_new(tmp_path / "new")
    assert names_in(tmp_path) == ["new"]
    assert verify(tmp_path / "new")["files"].keys() == {"a.txt"}
    assert unlisted_note(tmp_path / "new", ["a.txt"]) == ""


@pytest.mark.parametrize("make", FILES)
def test_name_of_a_file_in_writing_that_the_user_has_given_is_refused(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "pipeline.toml.longmlm.partial")
    before = everything(tmp_path)
    with pytest.raises(FolderError, match=r"pipeline\.toml\.longmlm\.partial"):
        write_text(tmp_path / "pipeline.toml", "ours")
    assert everything(tmp_path) == before


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, "ours"),
    "chart": lambda path: write_png(Chart("", ("", ""), [Series("", "blue", [0.0], [1.0])]), path),
    "set_aside": lambda path: write_set_aside(path, [SetAside("", "", 0)]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_file_that_a_link_leads_to_is_not_overwritten(tmp_path: Path, writer: str) -> None:
    a_link_to_a_file(tmp_path / "out")
    a_file(tmp_path / "out.partial")
    WRITERS[writer](tmp_path / "out")
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere.txt").read_text() == (tmp_path / "out.partial").read_text() == MINE


def test_file_that_a_killed_process_left_half_written_is_replaced(tmp_path: Path) -> None:
    a_file(tmp_path / "a.toml.longmlm.partial")
    write_text(tmp_path / "a.toml", "ours")
    assert everything(tmp_path) == {"a.toml": "ours"}
    with pytest.raises(RuntimeError), replaced_file(tmp_path / "a.toml"):
        raise RuntimeError
    assert everything(tmp_path) == {"a.toml": "ours"}


@pytest.mark.parametrize("make", [a_link_to_a_file, a_dangling_link, a_folder])
def test_lock_empties_nothing(tmp_path: Path, make: Make) -> None:
    make(tmp_path / ".lock")
    before = everything(tmp_path)
    with pytest.raises(FolderError, match=r"\.lock"), exclusive_lock(tmp_path):
        pytest.fail("the lock was taken")
    assert everything(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


def test_lock_that_the_user_has_written_keeps_its_content(tmp_path: Path) -> None:
    a_file(tmp_path / ".lock")
    with exclusive_lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == MINE


def test_page_of_the_user_is_not_replaced_by_a_result(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(MINE)
    with (
        pytest.raises(FolderError, match="index.html"),
        replaced_folder(tmp_path / "site", ["evaluation.json", "index.html"]),
    ):
        pytest.fail("the folder was opened for writing")
    assert everything(tmp_path) == {"site/index.html": MINE}


@pytest.mark.parametrize(
    ("remove", "owned"), [(discard, MARK), (partial(remove_with, names=["trial.json"]), "trial.json")]
)
def test_kill_while_a_folder_is_removed_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], None], owned: str
) -> None:
    num_files = 8
    for num_removed in range(num_files):
        folder = tmp_path / f"{num_removed}.partial"
        (folder / "sub").mkdir(parents=True)
        for name in (owned, *(f"sub/{number}" for number in range(3)), *(f"{number}" for number in range(4))):
            (folder / name).touch()
        with monkeypatch.context() as patch:
            dying(patch, num_removed)
            with pytest.raises(KeyboardInterrupt):
                remove(folder)
        assert (folder / owned).is_file()
        remove(folder)
        assert not folder.exists()


def dying(patch: pytest.MonkeyPatch, num_removed: int) -> None:
    """Lets the process die when it has removed so many files."""
    unlink, left = os.unlink, [None] * num_removed

    def dies(*arguments: object, **options: object) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        unlink(*arguments, **options)

    patch.setattr(os, "unlink", dies)
