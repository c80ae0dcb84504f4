"""Runs on rows of a hub: the same losses as on the folder, and a commit that is kept."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from longmlm.errors import CheckpointError
from longmlm.folders import MANIFEST
from longmlm.training.run_folder import checkpoint_folder
from tests.support.hub import Hub, Repository
from tests.support.hub_rows import NAME
from tests.support.training import losses


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return hub.repository(f"datasets/{NAME}")


def rewind(run: Path) -> None:
    """Takes the run back to its last checkpoint but one."""
    rmtree(checkpoint_folder(run, 4))
    (run / "summary.json").unlink()
    assert checkpoint_folder(run, 2).is_dir()


def test_run_on_published_rows_is_that_on_the_folder_and_records_the_commit(short, train, repository, tmp_path):
    here = train(short)
    there = train(replace(short, run=str(tmp_path / "there"), rows=f"hf:{NAME}"))
    assert losses(there) == losses(here)
    assert len(losses(there)) == 4
    pinned = f"hf:{NAME}@{repository.branches['main']}"
    newest = checkpoint_folder(there, 4)
    for folder in (there, newest):
        assert tomllib.loads((folder / "settings.toml").read_text())["rows"] == pinned
    assert json.loads((newest / "longmlm.json").read_text())["trained"]["rows"] == pinned
    assert json.loads((checkpoint_folder(here, 4) / "longmlm.json").read_text())["trained"]["rows"] is None


def test_resumed_run_keeps_its_commit_when_the_branch_has_moved(short, train, repository, published_files, capsys):
    short = replace(short, rows=f"hf:{NAME}")
    run, first = train(short), repository.branches["main"]
    whole = losses(run)
    rewind(run)
    repository.commit({name: content for name, content in published_files.items() if not name.startswith("train/")})
    capsys.readouterr()
    assert losses(train(short)) == whole
    assert f"hf:{NAME}@{first}" in capsys.readouterr().out
    assert tomllib.loads((run / "settings.toml").read_text())["rows"] == f"hf:{NAME}@{first}"


def test_run_that_started_on_the_folder_resumes_with_the_same_rows_on_the_hub_and_with_no_others(
    short, train, repository, published_files
):
    run = train(short)
    whole = losses(run)
    rewind(run)
    assert losses(train(replace(short, rows=f"hf:{NAME}"))) == whole
    other = json.loads(published_files[MANIFEST])
    held_out, train_shard = sorted(name for name in other["files"] if name.endswith(".arrow"))
    other["files"][train_shard] = other["files"][held_out]
    other["report"]["train"] = other["report"]["held_out"]
    repository.commit({**published_files, train_shard: published_files[held_out], MANIFEST: json.dumps(other).encode()})
    rewind(run)
    with pytest.raises(CheckpointError, match="the rows' SHA-256 was "):
        train(replace(short, rows=f"hf:{NAME}@{repository.branches['main']}"))
