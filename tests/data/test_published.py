"""Rows on a hub: found by their name, kept at a commit, downloaded whole or not at all."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from longmlm.data.published import folder_of_rows, open_named_rows, pin_rows
from longmlm.data.row import Row
from longmlm.data.rows import write_shard
from longmlm.errors import DataError, FolderError
from longmlm.folders import MANIFEST, new_folder
from tests.support.hub import Hub, Repository, point_client_at, serve
from tests.support.loopback import CUT, Fault
from tests.support.rows import manifest_of

NAME, TOKEN = "owner/rows", "hf_planted0123456789"
ABOUT = manifest_of(row_length=400)
SHARD = "train/slice-00001.arrow"


def row_of(seed: int) -> Row:
    ids = np.random.default_rng(seed).integers(5, 60_000, 400, dtype=np.uint32)
    return Row(ids, np.array([0], dtype=np.int32), np.array([0], dtype=np.uint16))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What lies in a repository of rows: three shards of some size."""
    folder = tmp_path_factory.mktemp("published") / "rows"
    with new_folder(folder, ABOUT) as partial:
        for number, split in enumerate(["train", "train", "held_out"]):
            (partial / split).mkdir(exist_ok=True)
            write_shard(
                partial / split / f"slice-{number:05d}.arrow",
                (row_of(400 * number + place) for place in range(400)),
                60_000,
            )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> Iterator[Hub]:
    with serve() as hub:
        hub.token = TOKEN
        hub.repository(f"datasets/{NAME}").commit(files)
        point_client_at(hub, tmp_path / "hf", monkeypatch)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        yield hub


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return hub.repository(f"datasets/{NAME}")


def downloads(hub: Hub) -> list[tuple[str, int, int]]:
    """Returns file, first byte and end of each answer that was sent of a shard."""
    return [(path.split("/", 6)[-1], first, last) for path, first, last in hub.sent if path.endswith(".arrow")]


def test_rows_are_those_that_were_published_and_are_downloaded_once(
    hub: Hub, repository: Repository, files: dict[str, bytes]
) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    assert pinned == f"hf:{NAME}@{repository.branches['main']}"
    rows = open_named_rows(pinned, "held_out")
    assert [name for name, *_ in downloads(hub)] == ["held_out/slice-00002.arrow"]
    assert len(rows) == 400
    assert rows[7].input_ids.tolist() == row_of(807).input_ids.tolist()
    folder = folder_of_rows(pinned)
    assert {name: (folder / name).read_bytes() for name in files} == files
    requests = len(hub.requests)
    assert len(open_named_rows(pinned, "train")) == 800
    assert len(downloads(hub)) == 3
    assert len(hub.requests) == requests


def test_commit_is_kept_when_the_branch_moves(hub: Hub, repository: Repository, files: dict[str, bytes]) -> None:
    first = pin_rows(f"hf:{NAME}")
    repository.tags["v1"] = repository.branches["main"]
    repository.commit({**files, "README.md": b"new"})
    moved = pin_rows(f"hf:{NAME}")
    assert moved != first == pin_rows(f"hf:{NAME}@v1")
    assert pin_rows(f"hf:{NAME}", first) == first
    assert pin_rows(moved, first) == moved
    assert pin_rows(f"hf:{NAME}", "hf:owner/other@" + "a" * 40) == moved
    assert pin_rows("out/rows", first) == "out/rows"


def test_download_that_is_cut_goes_on_where_it_was(
    hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1_000)  # less than what is sent before the cut
    hub.faults = [Fault(f"GET .*{SHARD}", CUT, times=2)]
    assert len(open_named_rows(pin_rows(f"hf:{NAME}"), "train")) == 800
    sent = [(first, last) for name, first, last in downloads(hub) if name == SHARD]
    size = len(files[SHARD])
    assert len(sent) == 3
    assert 0 < sent[0][1] < sent[1][1] < sent[2][1] == size
    assert [first // 1_000 for first, _ in sent] == [0, sent[0][1] // 1_000, sent[1][1] // 1_000]


def test_download_that_failed_keeps_what_is_whole(hub: Hub) -> None:
    hub.faults = [Fault(f"GET .*{SHARD}", 500, times=100)]
    pinned = pin_rows(f"hf:{NAME}")
    with pytest.raises(DataError, match="owner/rows: the hub answers 500: give the same command again") as caught:
        folder_of_rows(pinned)
    assert "\n" not in str(caught.value)
    before, hub.faults = [name for name, *_ in downloads(hub)], []
    assert len(open_named_rows(pinned, "train")) == 800
    assert [name for name, *_ in downloads(hub)] == [*before, SHARD]
    assert before


@pytest.mark.parametrize("spoil", ["altered", "truncated", "lacking"])
def test_file_that_is_not_what_the_manifest_says_is_named(
    hub: Hub, repository: Repository, files: dict[str, bytes], spoil: str
) -> None:
    spoilt = {"altered": files[SHARD][:-1] + b"x", "truncated": files[SHARD][:-8]}
    repository.commit(
        {
            name: spoilt.get(spoil, b"") if name == SHARD else files[name]
            for name in files
            if name != SHARD or spoil in spoilt
        }
    )
    with pytest.raises(FolderError, match=rf"^hf:{NAME}@[0-9a-f]+: .*{SHARD} is (damaged|missing)"):
        open_named_rows(pin_rows(f"hf:{NAME}"), "train")
    assert len(open_named_rows(pin_rows(f"hf:{NAME}"), "held_out")) == 400


def test_file_that_was_damaged_here_is_downloaded_again_once_it_is_removed(hub: Hub, files: dict[str, bytes]) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    shard = folder_of_rows(pinned) / SHARD
    shard.resolve().write_bytes(files[SHARD][:-1] + b"x")
    with pytest.raises(FolderError, match=f"{SHARD} is damaged.*remove that file, and what it links to"):
        open_named_rows(pinned, "train")
    shard.resolve().unlink()
    shard.unlink()
    assert len(open_named_rows(pinned, "train")) == 800


def test_manifest_that_names_files_elsewhere_is_refused(
    hub: Hub, repository: Repository, files: dict[str, bytes]
) -> None:
    for name in ("train/../../../secret", "/etc/passwd"):
        manifest = json.loads(files[MANIFEST])
        manifest["files"][name] = manifest["files"][SHARD]
        repository.commit({**files, MANIFEST: json.dumps(manifest).encode()})
        with pytest.raises(FolderError, match=f"names a file outside of its folder .*{name}"):
            open_named_rows(pin_rows(f"hf:{NAME}"), "train")


def test_rows_that_are_here_are_opened_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    folder_of_rows(pinned)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pin_rows(pinned) == pinned
    assert len(open_named_rows(pinned, "train")) == 800


def test_what_cannot_be_had_is_one_line(
    hub: Hub, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    said = []

    def refused(name: str, message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            folder_of_rows(pin_rows(name))
        said.append(str(caught.value))

    refused("hf:rows", "names no rows on the hub: write hf:OWNER/NAME")
    refused("hf:owner/none", "owner/none: no such folder nor data set of the hub that you may read")
    refused(f"hf:{NAME}@nope", "has no revision 'nope'")
    refused(f"hf:{NAME}@{'f' * 40}", "owner/rows")
    repository.private = True
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    refused(f"hf:{NAME}", "check its name, and that HF_TOKEN is valid and may read it")
    hub.faults = [Fault("GET", 401, times=100, said="Invalid token hf_another")]
    refused(f"hf:{NAME}", "HF_TOKEN")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    shutil.rmtree(tmp_path / "hf", ignore_errors=True)
    refused(f"hf:{NAME}", "the hub cannot be reached .*offline")
    refused(pinned, "the hub cannot be reached")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused(f"hf:{NAME}", "the hub cannot be reached .*check the network, or name a commit that is here")
    assert len(said) == 9
    assert not [line for line in said if "\n" in line or "hf_another" in line]
