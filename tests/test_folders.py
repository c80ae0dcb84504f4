"""Folders that are complete or absent: nothing is left of a failure, and no damage goes unnoticed."""

import hashlib
import itertools
import json
import signal
from pathlib import Path
from typing import BinaryIO

import pytest

from longmlm import folders
from longmlm.errors import FolderError
from longmlm.folders import (
    MANIFEST,
    new_folder,
    read_manifest,
    replaced_folder,
    sha256_of,
    verify,
    write_json,
)
from longmlm.runtime.signals import exit_on_signal
from longmlm.temporary import MARK, mark


def fill(folder: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.txt").write_text("calm", encoding="utf-8")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "deep" / "er" / "b.bin").write_bytes(bytes(range(256)))
    (folder / "deep" / MANIFEST).write_text("{}", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with new_folder(tmp_path / "made" / "here", {"kind": "test", "湖": 1}) as partial:
        fill(partial)
    return tmp_path / "made" / "here"


def test_a_new_folder_holds_what_was_written_and_a_manifest_of_every_file(folder: Path) -> None:
    manifest = verify(folder)
    assert manifest == read_manifest(folder)
    assert (manifest["kind"], manifest["湖"]) == ("test", 1)
    assert sorted(manifest["files"]) == ["a.txt", "deep/er/b.bin", f"deep/{MANIFEST}", "empty.txt"]
    assert manifest["files"]["a.txt"] == {"bytes": 4, "sha256": sha256_of(folder / "a.txt")}
    assert manifest["files"]["empty.txt"]["bytes"] == 0
    assert [path.name for path in folder.parent.iterdir()] == ["here"]


@pytest.mark.parametrize(("seconds_since_change", "num_reads"), [(0.1, 4), (10, 2)])
def test_a_file_is_read_again_only_if_it_may_have_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds_since_change: float, num_reads: int
) -> None:
    path, read = folder / "a.txt", []

    def digest(file: BinaryIO, name: str) -> object:
        read.append(file.name)
        return hashlib.new(name, file.read())

    monkeypatch.setattr(folders.hashlib, "file_digest", digest)
    monkeypatch.setattr(folders.time, "time_ns", lambda: path.stat().st_ctime_ns + round(seconds_since_change * 1e9))
    before = [sha256_of(path), sha256_of(path)]
    path.write_text("wild", encoding="utf-8")
    assert [sha256_of(path), sha256_of(path), *before] == [
        hashlib.sha256(text).hexdigest() for text in (b"wild", b"wild", b"calm", b"calm")
    ]
    assert read == [str(path)] * num_reads


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_error_while_writing_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def write_and_stop() -> None:
        with new_folder(tmp_path / "new") as partial:
            fill(partial)
            assert (partial / "a.txt").exists()
            raise error("stopped")

    with pytest.raises(error, match="stopped"):
        write_and_stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["sha256_of", "write_json", "sync"])
def test_an_error_while_sealing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, step, full)
    with pytest.raises(OSError, match="No space left"), new_folder(tmp_path / "new") as partial:
        fill(partial)
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_written_after_every_file_is_synced_and_the_rename_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, write = folders.sync, folders.write_json

    def noted_sync(path: Path) -> None:
        events.append(path.name + " as new" * (tmp_path / "new").exists())
        sync(path)

    def noted_write(path: Path, content: dict) -> None:
        assert not (tmp_path / "new").exists()
        events.append("manifest begins")
        write(path, content)

    monkeypatch.setattr(folders, "sync", noted_sync)
    monkeypatch.setattr(folders, "write_json", noted_write)
    with new_folder(tmp_path / "new") as partial:
        (partial / "a.txt").write_text("calm", encoding="utf-8")
        (partial / "b.txt").write_text("calm", encoding="utf-8")
    assert events == [
        "a.txt",
        "b.txt",
        "manifest begins",
        f"{MANIFEST}.longmlm.partial",
        "new.partial",
        f"{tmp_path.name} as new",
    ]


def test_sigterm_while_writing_leaves_nothing_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def write_and_be_stopped() -> None:
        with exit_on_signal(""), new_folder(tmp_path / "new") as partial:
            fill(partial)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as stop:
        write_and_be_stopped()
    assert stop.value.code == 128 + signal.SIGTERM
    assert "SIGTERM" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_path_is_never_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    before = verify(folder)
    for path in (folder, tmp_path / "file"):
        with pytest.raises(FolderError, match=f"{path} already exists"), new_folder(path):
            pytest.fail("the folder was opened for writing")
    assert verify(folder) == before
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def damage(path: Path, how: str) -> None:
    """Removes a file, flips one of its bits, or changes its size."""
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[:-1] if how == "shorter" else bytes(content) + b" ")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *itertools.product(["a.txt", "deep/er/b.bin", f"deep/{MANIFEST}"], ["missing", "flipped", "shorter", "longer"]),
        *itertools.product(["empty.txt"], ["missing", "longer"]),
    ],
)
def test_damage_to_any_file_is_found_and_the_file_named(folder: Path, name: str, how: str) -> None:
    damage(folder / name, how)
    with pytest.raises(FolderError, match=f"{folder / name} is {'missing' if how == 'missing' else 'damaged'}"):
        verify(folder)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((content, f"{MANIFEST} is damaged") for content in (b"", b"{", b"\xff\xfe")),
        *((content, "lists no files") for content in (b"[]", b"{}", b"7", b'{"files": ["a.txt"]}', b'{"name": "it"}')),
        (None, f"has no {MANIFEST}"),
    ],
)
def test_a_folder_whose_manifest_is_damaged_of_something_else_or_missing_is_refused(
    folder: Path, content: bytes | None, problem: str
) -> None:
    (folder / MANIFEST).unlink() if content is None else (folder / MANIFEST).write_bytes(content)
    with pytest.raises(FolderError, match=problem):
        verify(folder)
    with pytest.raises(FolderError, match="no such folder"):
        verify(folder / "absent")


@pytest.mark.parametrize(
    "entry", [7, None, "sha", [], {}, {"bytes": 4}, {"bytes": 4, "sha256": "", "owner": "me"}], ids=str
)
def test_an_entry_of_another_shape_is_named(folder: Path, entry: object) -> None:
    content = read_manifest(folder)
    write_json(folder / MANIFEST, {**content, "files": {**content["files"], "a.txt": entry}})
    for check in (read_manifest, verify):
        with pytest.raises(FolderError, match=rf"{folder / MANIFEST} is damaged: files\.a\.txt "):
            check(folder)


def test_only_the_files_that_are_asked_for_are_checked(folder: Path) -> None:
    (folder / "a.txt").unlink()
    assert verify(folder, "deep/") == read_manifest(folder)
    (folder / "deep" / "er" / "b.bin").write_bytes(b"")
    with pytest.raises(FolderError, match=r"b\.bin is damaged"):
        verify(folder, "deep/")


@pytest.mark.parametrize("name", ["../outside", "deep/../../outside", "/etc/passwd"])
def test_a_manifest_that_names_a_file_outside_its_folder_is_refused(folder: Path, name: str) -> None:
    content = read_manifest(folder)
    write_json(folder / MANIFEST, {**content, "files": {**content["files"], name: content["files"]["a.txt"]}})
    with pytest.raises(FolderError, match=f"{MANIFEST} names a file outside .*'{name}'"):
        read_manifest(folder)


def test_a_json_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"湖": 1})
    assert json.loads(path.read_text(encoding="utf-8")) == {"湖": 1}
    with pytest.raises(TypeError):
        write_json(path, {"set": {1}})
    assert json.loads(path.read_text(encoding="utf-8")) == {"湖": 1}
    with path.open(encoding="utf-8") as reader:
        write_json(path, {"a": None})
        assert json.load(reader) == {"湖": 1}
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": None}
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_file_in_the_place_of_a_folder_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("x")
    with pytest.raises(FolderError, match="rows is a file"):
        read_manifest(tmp_path / "rows")


def replace(folder: Path, text: str) -> None:
    with replaced_folder(folder, ["a.txt"]) as partial:
        assert [path.name for path in partial.iterdir()] == [MARK]
        (partial / "a.txt").write_text(text, encoding="utf-8")
        if text == "fail":
            raise RuntimeError


def test_a_replaced_folder_stays_as_it_was_until_the_new_one_is_complete(tmp_path: Path) -> None:
    replace(tmp_path / "new", "first")
    with pytest.raises(RuntimeError):
        replace(tmp_path / "new", "fail")
    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "first"
    mark(tmp_path / "new")  # as a kill between the two renames leaves it
    (tmp_path / "new").rename(tmp_path / "new.earlier.partial")
    with pytest.raises(RuntimeError):
        replace(tmp_path / "new", "fail")
    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "first"
    replace(tmp_path / "new", "second")
    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    for path, name in ((tmp_path, "mine.txt"), (tmp_path / "mine.txt", "is a file")):
        with pytest.raises(FolderError, match=name):
            replace(path, "lost")
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"
