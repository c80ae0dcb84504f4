"""Damage on the disk and changed inputs are named in a line and never trained on; what is intact is used."""

import errno
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import folders
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.errors import CheckpointError, DataError, FolderError
from longmlm.folders import MANIFEST, seal, verify
from longmlm.hubs.model_files import local_model_sha256, weights_sha256
from longmlm.model.loading import load_model
from longmlm.stages.checkpoints import checkpoint_table
from longmlm.training import checkpoint
from longmlm.training.run_folder import VerifiedCheckpoint, checkpoint_folder, list_checkpoints, newest_verified
from tests.support.training import assert_same_model, with_recipe

KINDS = ("flipped", "truncated", "emptied")


def damage(path: Path, kind: str) -> None:
    """Flips one bit in the middle of the file, which another call restores, or truncates the file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if kind == "flipped":
        content[middle] ^= 1
    path.write_bytes({"flipped": content, "truncated": content[:middle], "emptied": b""}[kind])


def test_whichever_file_is_damaged_or_missing_the_checkpoint_is_skipped_and_the_file_named(finished):
    run = finished
    newest, before = checkpoint_folder(run, 12), checkpoint_folder(run, 8)
    names = sorted(path.name for path in newest.rglob("*") if path.is_file())
    assert {MANIFEST, "model.safetensors", "optimizer.pt", "state.json", "settings.toml"} < set(names)
    for name in names:
        path = newest / name
        content = path.read_bytes()
        for kind in (*KINDS, "missing"):
            path.unlink() if kind == "missing" else damage(path, kind)
            newest_now = newest_verified(run)
            assert newest_now.folder == before, (name, kind)
            assert len(newest_now.skipped) == 1 and newest.name in newest_now.skipped[0], (name, kind)
            blamed = names if name == MANIFEST else [name]  # a manifest may be wrong about another file
            assert any(file in newest_now.skipped[0] for file in blamed), (name, kind, newest_now.skipped)
            path.write_bytes(content)
    (newest / "notes.txt").write_text("a file that is not in the manifest does not count", encoding="utf-8")
    assert newest_verified(run) == VerifiedCheckpoint(newest, ())


def test_a_resumed_run_reads_the_files_of_its_checkpoint_once_for_their_hashes(finished, monkeypatch):
    digested, file_digest = Counter(), folders.hashlib.file_digest

    def counting(file, name):
        digested[Path(file.name).name] += 1
        return file_digest(file, name)

    monkeypatch.setattr(folders.hashlib, "file_digest", counting)
    monkeypatch.setattr(folders, "SETTLED_NS", -1)  # as of files that were written long ago
    newest = newest_verified(finished).folder
    load_model(str(newest))
    assert weights_sha256(newest) and local_model_sha256(str(newest))
    assert digested["model.safetensors"] == digested["optimizer.pt"] == 1
    assert set(digested.values()) == {1}


def test_every_flipped_bit_in_a_manifest_makes_the_folder_refused(tmp_path):
    partial, folder = tmp_path / "a.partial", tmp_path / "a"
    partial.mkdir()
    for name in ("one.pt", "two.json"):
        (partial / name).write_text(name)
    seal(partial, folder)
    content = (folder / MANIFEST).read_bytes()
    assert len(content) > 200
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / MANIFEST).write_bytes(flipped)
        with pytest.raises(FolderError):
            verify(folder)


def test_a_damaged_checkpoint_is_replaced_by_the_resumed_run(settings, train, uninterrupted, finished, capsys):
    run = finished
    for name in (MANIFEST, "optimizer.pt"):
        damage(checkpoint_folder(run, 12) / name, "truncated")
        half = run / "checkpoints" / "step-00000016.partial"
        half.mkdir()
        capsys.readouterr()
        train(settings)
        assert f"step-00000012: {checkpoint_folder(run, 12) / name}" in capsys.readouterr().out
        assert not half.exists()
        assert newest_verified(run) == VerifiedCheckpoint(checkpoint_folder(run, 12), ())
        assert_same_model(uninterrupted, run, 12)


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_while_a_checkpoint_is_replaced_leaves_an_intact_one(tmp_path, monkeypatch, renames):
    folder = tmp_path / "checkpoints" / "step-00000004"
    for content in ("old", "new"):
        partial = folders.partial_of(folder)
        partial.mkdir(parents=True)
        (partial / "model.safetensors").write_text(content)
        if content == "old":
            seal(partial, folder)
    rename, done = Path.rename, []

    def crash(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise RuntimeError("killed")
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(RuntimeError, match="killed"):
        seal(partial, folder)
    monkeypatch.undo()
    with pytest.raises(CheckpointError):  # files of a checkpoint are missing here, its folder is not
        newest_verified(tmp_path)
    verify(folder)
    assert (folder / "model.safetensors").read_text() == "old"


def test_a_copy_beside_the_checkpoints_is_not_one_of_them(tmp_path):
    for name in ("step-00000004", "step-00000004.bak", "step-best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000004"]


def test_a_manifest_that_lists_too_few_files_makes_the_checkpoint_damaged_and_the_first_is_named(finished):
    run = finished
    newest, before = checkpoint_folder(run, 12), checkpoint_folder(run, 8)
    manifest = json.loads((newest / MANIFEST).read_text(encoding="utf-8"))
    for missing in (
        "config.json",
        "model.safetensors",
        "longmlm.json",
        "optimizer.pt",
        "rng-00000.pt",
        "settings.toml",
    ):
        files = {name: about for name, about in manifest["files"].items() if name != missing}
        assert len(files) == len(manifest["files"]) - 1
        (newest / MANIFEST).write_text(json.dumps({**manifest, "files": files}), encoding="utf-8")
        newest_now = newest_verified(run)
        pattern = {"model.safetensors": "model*.safetensors", "rng-00000.pt": "rng-*.pt"}.get(missing, missing)
        assert newest_now.folder == before
        assert f"does not list {pattern}" in newest_now.skipped[0]
    (newest / MANIFEST).write_text('{"files": {}}', encoding="utf-8")
    assert "does not list config.json" in newest_verified(run).skipped[0]
    table, problems = checkpoint_table(run, is_verified=True)
    assert [line[4] for line in table.lines] == ["intact", "damaged"] and len(problems) == 1


def contents(run: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in (".lock", PAGE_FILE)
    }


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_nothing_in_it_changes(settings, train, finished):
    run = finished
    damage(checkpoint_folder(run, 12) / "optimizer.pt", "truncated")
    (checkpoint_folder(run, 8) / MANIFEST).unlink()
    before = contents(run)
    problems = rf"step-00000012: .*optimizer\.pt is damaged.*; step-00000008: .* has no {MANIFEST}"
    for is_dry in (False, True):
        with pytest.raises(CheckpointError, match=problems):
            train(replace(settings, dry_run=is_dry))
    assert run / "metrics.jsonl" in before
    assert contents(run) == before
    for step in (8, 12):
        shutil.rmtree(checkpoint_folder(run, step))
    assert checkpoint_folder(train(settings), 12).is_dir()


def test_an_unreadable_disk_does_not_make_a_run_start_over(finished, monkeypatch):
    before = contents(finished)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for owner, name in ((folders, "sha256_of"), (Path, "iterdir")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            with pytest.raises(CheckpointError, match="cannot be read.*Input/output error"):
                newest_verified(finished)
    assert contents(finished) == before


def other_rows(rows: Path, folder: Path) -> Path:
    """Returns an intact copy of the rows in which the shards of both splits have changed places."""
    copy = Path(shutil.copytree(rows, folder))
    manifest = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
    held_out, train = sorted(name for name in manifest["files"] if name.endswith(".arrow"))
    (copy / held_out).rename(copy / "shard")
    (copy / train).rename(copy / held_out)
    (copy / "shard").rename(copy / train)
    files = manifest["files"]
    files[held_out], files[train] = files[train], files[held_out]
    report = manifest["report"]
    report["held_out"], report["train"] = report["train"], report["held_out"]
    (copy / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return copy


def test_what_was_changed_or_damaged_since_a_run_started_is_named_when_it_is_resumed(half_trained, train, tmp_path):
    settings = half_trained
    run, rows = Path(settings.run), Path(settings.rows)
    before = contents(run)

    with pytest.raises(CheckpointError, match=r"the rows' SHA-256 was [0-9a-f]{12}, is [0-9a-f]{12}"):
        train(replace(settings, rows=str(other_rows(rows, tmp_path / "rows"))))

    masking = replace(settings.recipe.masking, selected_fraction=0.3)
    with pytest.raises(CheckpointError, match=r"recipe\.masking\.selected_fraction was 0\.15, is 0\.3"):
        train(with_recipe(settings, masking=masking))
    with pytest.raises(CheckpointError, match=r"recipe\.masking\.unit was token, is span"):
        train(with_recipe(settings, masking=replace(settings.recipe.masking, unit="span")))

    flipped = Path(shutil.copytree(rows, tmp_path / "flipped"))
    shards = sorted(flipped.glob("*/*.arrow"))
    assert len(shards) > 1
    for shard in shards:
        damage(shard, "flipped")
        with pytest.raises(FolderError, match=f"{shard} is damaged"):
            train(replace(settings, rows=str(flipped)))
        damage(shard, "flipped")

    alien = Path(shutil.copytree(rows, tmp_path / "alien"))
    manifest = json.loads((alien / MANIFEST).read_text(encoding="utf-8"))
    manifest["plan"]["tokenizer_fingerprint"] = "0" * 64
    (alien / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match="another tokenizer"):
        train(replace(settings, rows=str(alien)))

    assert before and contents(run) == before
    moved = flipped.rename(tmp_path / "moved")
    assert checkpoint_folder(train(replace(settings, rows=str(moved))), 12).is_dir()


@pytest.mark.parametrize(("failing", "kept"), [(4, "there is no earlier one"), (8, "step-00000004 is kept")])
def test_a_checkpoint_that_cannot_be_written_says_what_is_left(settings, train, monkeypatch, failing, kept):
    save_model = checkpoint.save_model

    def failing_save(model, tokenizer, carried, folder, weights):
        if folder.name.startswith(f"step-{failing:08d}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        save_model(model, tokenizer, carried, folder, weights)

    monkeypatch.setattr(checkpoint, "save_model", failing_save)
    with pytest.raises(CheckpointError, match=f"the checkpoint of step {failing} could not be written; {kept}"):
        train(settings)
