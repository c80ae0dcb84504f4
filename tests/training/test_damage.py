"""Damage on the disk and changed inputs: named in a line, never trained on; what is sound is used."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm import folders
from longmlm.errors import CheckpointError, DataError, FolderError
from longmlm.folders import MANIFEST, seal, verify
from longmlm.reports.checkpoints import list_checkpoints
from longmlm.training import checkpoint
from longmlm.training.checkpoint import folder_of
from longmlm.training.tracking import METRICS
from tests.training.test_run import stop_after

KINDS = ("flipped", "truncated", "emptied")


def damage(path: Path, kind: str) -> None:
    """Flips one bit in the middle of the file, which another call puts right, or cuts the file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if kind == "flipped":
        content[middle] ^= 1
    path.write_bytes({"flipped": content, "truncated": content[:middle], "emptied": b""}[kind])


def test_a_checkpoint_is_skipped_and_the_file_named_whichever_file_is_damaged_or_missing(settings, train):
    run = train(settings)
    newest, before = folder_of(run, 12), folder_of(run, 8)
    names = sorted(path.name for path in newest.rglob("*") if path.is_file())
    assert {MANIFEST, "model.safetensors", "optimizer.pt", "state.json", "settings.toml"} < set(names)
    for name in names:
        path = newest / name
        content = path.read_bytes()
        for kind in (*KINDS, "missing"):
            path.unlink() if kind == "missing" else damage(path, kind)
            found = checkpoint.newest_verified(run)
            assert found.folder == before, (name, kind)
            assert len(found.skipped) == 1 and newest.name in found.skipped[0], (name, kind)
            named = names if name == MANIFEST else [name]  # a manifest may be wrong about another file
            assert any(one in found.skipped[0] for one in named), (name, kind, found.skipped)
            path.write_bytes(content)
    (newest / "notes.txt").write_text("a file of somebody's own does not count", encoding="utf-8")
    assert checkpoint.newest_verified(run) == checkpoint.VerifiedCheckpoint(newest, ())


def test_no_flipped_bit_in_a_manifest_is_more_than_a_folder_that_is_refused(tmp_path):
    partial, folder = tmp_path / "a.partial", tmp_path / "a"
    partial.mkdir()
    for name in ("one.pt", "two.json"):
        (partial / name).write_text(name)
    seal(partial, folder)
    content = (folder / MANIFEST).read_bytes()
    assert len(content) > 200
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        (folder / MANIFEST).write_bytes(flipped)
        with pytest.raises(FolderError):
            verify(folder)


def test_a_checkpoint_with_a_damaged_manifest_is_replaced_by_the_resumed_run(settings, train, capsys):
    run = train(settings)
    damage(folder_of(run, 12) / MANIFEST, "truncated")
    capsys.readouterr()
    train(settings)
    said = capsys.readouterr().out
    assert f"checkpoint step-00000012 is skipped: {folder_of(run, 12) / MANIFEST} is damaged" in said
    assert checkpoint.newest_verified(run) == checkpoint.VerifiedCheckpoint(folder_of(run, 12), ())


def test_a_checkpoint_whose_manifest_lists_too_few_files_is_unsound_and_the_first_is_named(settings, train):
    run = train(settings)
    newest, before = folder_of(run, 12), folder_of(run, 8)
    manifest = json.loads((newest / MANIFEST).read_text(encoding="utf-8"))
    for needed in ("config.json", "model.safetensors", "longmlm.json", "optimizer.pt", "rng-00000.pt", "settings.toml"):
        files = {name: about for name, about in manifest["files"].items() if name != needed}
        assert len(files) == len(manifest["files"]) - 1
        (newest / MANIFEST).write_text(json.dumps({**manifest, "files": files}), encoding="utf-8")
        found = checkpoint.newest_verified(run)
        pattern = {"model.safetensors": "model*.safetensors", "rng-00000.pt": "rng-*.pt"}.get(needed, needed)
        assert found.folder == before
        assert f"does not list {pattern}" in found.skipped[0]
    (newest / MANIFEST).write_text('{"files": {}}', encoding="utf-8")
    assert "does not list config.json: the checkpoint is not whole" in checkpoint.newest_verified(run).skipped[0]
    table, problems = list_checkpoints(run, is_verified=True)
    assert [line[4] for line in table.lines] == ["sound", "unsound"] and len(problems) == 1


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_run_whose_checkpoints_are_all_unsound_is_refused_and_its_record_stays(settings, train):
    run = train(settings)
    damage(folder_of(run, 12) / "optimizer.pt", "truncated")
    (folder_of(run, 8) / MANIFEST).unlink()
    before = contents(run)
    said = rf"step-00000012: .*optimizer\.pt is damaged.*; step-00000008: .* has no {MANIFEST}.* to begin anew"
    with pytest.raises(CheckpointError, match=said):
        train(settings)
    with pytest.raises(CheckpointError, match="no sound checkpoint"):
        train(replace(settings, dry_run=True))
    assert run / METRICS in before
    assert contents(run) == before
    for step in (8, 12):
        shutil.rmtree(folder_of(run, step))
    assert folder_of(train(settings), 12).is_dir()


def test_a_disk_that_cannot_be_read_does_not_make_a_run_begin_anew(settings, train, monkeypatch):
    run = train(settings)
    before = contents(run)

    def away(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for place, name in ((folders, "sha256_of"), (Path, "iterdir")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, away)
            with pytest.raises(CheckpointError, match="cannot be read.*Input/output error.* the same command again"):
                checkpoint.newest_verified(run)
    assert contents(run) == before


def other_rows(rows: Path, folder: Path) -> Path:
    """Returns rows that tell of another source."""
    copy = Path(shutil.copytree(rows, folder))
    manifest = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
    manifest["plan"]["settings"]["held_out_fraction"] = 0.4
    (copy / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return copy


def test_what_was_changed_or_damaged_since_a_run_began_is_named_when_it_is_resumed(
    settings, train, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(settings)
    run, rows = Path(settings.run), Path(settings.rows)
    before = contents(run)

    changed = replace(settings, rows=str(other_rows(rows, tmp_path / "rows")))
    with pytest.raises(CheckpointError, match=r"begun otherwise: rows\.settings\.held_out_fraction was 0\.3, is 0\.4"):
        train(changed)

    recipe = replace(settings.recipe, masking=replace(settings.recipe.masking, selected_fraction=0.3))
    with pytest.raises(CheckpointError, match=r"recipe\.masking\.selected_fraction was 0\.15, is 0\.3"):
        train(replace(settings, recipe=recipe))

    flipped = Path(shutil.copytree(rows, tmp_path / "flipped"))
    shards = sorted(flipped.glob("*/*.arrow"))
    assert len(shards) > 1
    for shard in shards:
        damage(shard, "flipped")
        with pytest.raises(FolderError, match=f"{shard} is damaged"):
            train(replace(settings, rows=str(flipped)))
        damage(shard, "flipped")

    tokenizer = shutil.copytree(settings.start.tokenizer, tmp_path / "tokenizer")
    with pytest.raises(CheckpointError, match=r"start\.tokenizer was .*, is "):
        train(replace(settings, start=replace(settings.start, tokenizer=str(tokenizer))))

    alien = Path(shutil.copytree(rows, tmp_path / "alien"))
    manifest = json.loads((alien / MANIFEST).read_text(encoding="utf-8"))
    manifest["plan"]["tokenizer_fingerprint"] = "0" * 64
    (alien / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match="another tokenizer"):
        train(replace(settings, rows=str(alien)))

    assert before and contents(run) == before
    assert folder_of(train(settings), 12).is_dir()
