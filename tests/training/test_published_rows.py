"""Rows on a hub to a run: the same losses, a commit that is kept, one download for a machine."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from longmlm.errors import CheckpointError
from longmlm.folders import MANIFEST, read_manifest
from longmlm.release.dataset import write_dataset
from longmlm.settings.held_out import HeldOut
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, RowsCard, Source
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training import tracking
from longmlm.training.checkpoint import folder_of
from tests.support.hub import Hub, Repository, point_client_at, serve
from tests.training.test_processes import launch

NAME, TOKEN = "owner/rows", "hf_planted0123456789"


@pytest.fixture
def settings(settings: PretrainConfig) -> PretrainConfig:
    """Four steps, and two checkpoints."""
    recipe = replace(settings.recipe, num_steps=4, batch_tokens=128, held_out=HeldOut(max_rows=4))
    runtime = replace(settings.runtime, evaluate_every_steps=4, save_every_steps=2)
    return replace(settings, recipe=recipe, runtime=runtime)


@pytest.fixture(scope="module")
def files(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What is published of the rows."""
    folder, source = tmp_path_factory.mktemp("published"), Source(files=("text.jsonl",))
    made = PrepareConfig(
        output="rows",
        recipe=PrepareRecipe(tokenizer=str(ground / "tokenizer"), row_length=32, sources=(source,)),
        card=RowsCard(license="cc0-1.0"),
    )
    write_dataset(ground / "rows", made, folder)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", MANIFEST} < found.keys()
    return found


@pytest.fixture
def hub(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        hub.token = TOKEN
        hub.repository(f"datasets/{NAME}").private = True
        hub.repository(f"datasets/{NAME}").commit(files)
        point_client_at(hub, tmp_path / "hf", monkeypatch)
        yield hub


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return hub.repository(f"datasets/{NAME}")


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in tracking.read(run) if "loss" in line]


def rewind(run: Path) -> None:
    """Takes the run back to its last checkpoint but one."""
    rmtree(folder_of(run, 4))
    (run / "summary.json").unlink()
    assert folder_of(run, 2).is_dir()


def test_run_on_published_rows_is_that_on_the_folder_and_records_the_commit(settings, train, repository, tmp_path):
    here = train(settings)
    there = train(replace(settings, run=str(tmp_path / "there"), rows=f"hf:{NAME}"))
    assert losses(there) == losses(here)
    assert len(losses(there)) == 4
    pinned = f"hf:{NAME}@{repository.branches['main']}"
    newest = folder_of(there, 4)
    for folder in (there, newest):
        assert tomllib.loads((folder / "settings.toml").read_text())["rows"] == pinned
    assert json.loads((newest / "longmlm.json").read_text())["trained"]["rows"] == pinned
    assert json.loads((folder_of(here, 4) / "longmlm.json").read_text())["trained"]["rows"] is None


def test_resumed_run_keeps_its_commit_when_the_branch_has_moved(settings, train, repository, files, capsys):
    settings = replace(settings, rows=f"hf:{NAME}")
    run, first = train(settings), repository.branches["main"]
    whole = losses(run)
    rewind(run)
    repository.commit({name: content for name, content in files.items() if not name.startswith("train/")})
    capsys.readouterr()
    assert losses(train(settings)) == whole
    assert f"the rows stay those with which the run began, hf:{NAME}@{first}" in capsys.readouterr().out
    assert tomllib.loads((run / "settings.toml").read_text())["rows"] == f"hf:{NAME}@{first}"


def test_run_that_began_on_the_folder_goes_on_with_the_same_rows_on_the_hub_and_with_no_others(
    settings, train, repository, files
):
    run = train(settings)
    whole = losses(run)
    rewind(run)
    assert losses(train(replace(settings, rows=f"hf:{NAME}"))) == whole
    other = json.loads(files[MANIFEST])
    other["plan"]["sources"][0]["files"][0]["sha256"] = "0" * 64
    repository.commit({**files, MANIFEST: json.dumps(other).encode()})
    rewind(run)
    with pytest.raises(CheckpointError, match="was begun otherwise: rows"):
        train(replace(settings, rows=f"hf:{NAME}@{repository.branches['main']}"))


@pytest.mark.slow
def test_two_processes_download_each_file_once(settings, ground, hub, tmp_path, monkeypatch):
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    for name, value in {**environment, "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    runtime = replace(settings.runtime, num_processes=2)
    done = launch(replace(settings, rows=f"hf:{NAME}", runtime=runtime), "two-cpu-processes.yaml", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(losses(Path(settings.run))) == 4
    sent = Counter(path.split("/", 6)[-1] for path, *_ in hub.sent)
    shards = [name for name in read_manifest(ground / "rows")["files"] if name.endswith(".arrow")]
    assert len(shards) >= 2
    assert sent == Counter([MANIFEST, *shards])
    assert not [line for line in hub.requests if TOKEN in line]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes()
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.slow
def test_hub_that_refuses_ends_two_processes_in_one_line(settings, hub, tmp_path, monkeypatch):
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_another"}
    for name, value in {**environment, "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    runtime = replace(settings.runtime, num_processes=2)
    done = launch(replace(settings, rows=f"hf:{NAME}", runtime=runtime), "two-cpu-processes.yaml", tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0
    assert len(said) == 1 and "no such folder nor data set of the hub that you may read" in said[0]
    assert not Path(settings.run).exists()
