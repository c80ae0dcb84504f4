"""Locks of folders: one writer at a time, and a line where the file system has no locks."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from longmlm import folders
from longmlm.errors import FolderError
from longmlm.folders import new_folder, replaced_folder
from longmlm.processes import exclusive_lock


@pytest.mark.parametrize("written", [new_folder, partial(replaced_folder, names=["a.txt"])])
def test_of_two_writers_of_one_folder_the_second_is_refused(tmp_path: Path, written) -> None:
    new = tmp_path / "new"
    with written(new) as first:
        (first / "a.txt").write_text("first", encoding="utf-8")
        with pytest.raises(FolderError, match=f"{first} .*another process"), written(new):
            pytest.fail("the folder was opened for writing")
        assert (first / "a.txt").read_text(encoding="utf-8") == "first"
    assert (new / "a.txt").read_text(encoding="utf-8") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_writer_that_waited_at_a_folder_which_was_completed_starts_anew(tmp_path: Path, monkeypatch) -> None:
    """Between opening the temporary folder and locking it, another process completes it."""
    new, lock = tmp_path / "new", folders.lock

    def late(descriptor: int, folder: Path) -> None:
        monkeypatch.setattr(folders, "lock", lock)
        (folder / "a.txt").write_text("theirs", encoding="utf-8")
        folder.rename(new)
        lock(descriptor, folder)

    monkeypatch.setattr(folders, "lock", late)
    with replaced_folder(new, ["a.txt"]) as own:
        (own / "a.txt").write_text("mine", encoding="utf-8")
    assert (new / "a.txt").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
@pytest.mark.parametrize("locked", [exclusive_lock, new_folder, partial(replaced_folder, names=["a.txt"])])
def test_without_file_locks_a_line_says_so_and_the_folder_is_written(
    tmp_path: Path, monkeypatch, capsys, number: int, locked
) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path / "new") as written:
        ((written or tmp_path / "new") / "a.txt").write_text("text", encoding="utf-8")
    assert (tmp_path / "new" / "a.txt").is_file()
    (line,) = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "new") in line
    assert "no file locks" in line


def test_an_error_of_the_lock_that_is_no_missing_lock_is_raised(tmp_path: Path, monkeypatch) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", flock)
    for locked in (exclusive_lock, new_folder):
        with pytest.raises(OSError, match="Input/output"), locked(tmp_path / locked.__name__):
            pytest.fail("the folder was opened for writing")
