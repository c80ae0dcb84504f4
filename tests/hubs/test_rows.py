"""Rows on a hub by their name: pinned to a commit, downloaded once, verified."""

import numpy as np
import pytest
from huggingface_hub import constants

from longmlm.data.row import Row
from longmlm.data.rows import folder_of_rows, open_named_rows, pin_rows
from longmlm.errors import DataError, FolderError
from longmlm.folders import new_folder
from tests.support.hub import Hub, Repository
from tests.support.loopback import CUT, Fault
from tests.support.rows import manifest_of, write_shard
from tests.support.served import content

NAME = "owner/rows"
SHARD = "train/slice-00001.arrow"


def row_of(seed: int) -> Row:
    ids = np.random.default_rng(seed).integers(5, 60_000, 400, dtype=np.uint32)
    return Row(ids, np.array([1], dtype=np.int32), np.array([0], dtype=np.uint16))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a repository of rows: three shards."""
    folder = tmp_path_factory.mktemp("published") / "rows"
    rows = [row_of(number) for number in range(1_200)]
    with new_folder(folder, manifest_of(400, train=rows[:800], held_out=rows[800:])) as partial:
        for number, split in enumerate(["train", "train", "held_out"]):
            (partial / split).mkdir(exist_ok=True)
            shard = partial / split / f"slice-{number:05d}.arrow"
            write_shard(shard, rows[400 * number : 400 * number + 400], 60_000)
    return content(folder)


@pytest.fixture(autouse=True)
def repository(hub: Hub, files: dict[str, bytes]) -> Repository:
    hub.repository(f"datasets/{NAME}").commit(files)
    return hub.repository(f"datasets/{NAME}")


def downloads(hub: Hub) -> list[tuple[str, int, int]]:
    """Returns file, first byte and end of each answer with content of a shard."""
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
    assert content(folder_of_rows(pinned)) == files
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


def test_cut_download_resumes_where_it_was_cut(
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


def test_failed_download_keeps_complete_files(hub: Hub) -> None:
    hub.faults = [Fault(f"GET .*{SHARD}", 500, times=100)]
    pinned = pin_rows(f"hf:{NAME}")
    with pytest.raises(DataError, match=f"{NAME}.*500"):
        folder_of_rows(pinned)
    before, hub.faults = [name for name, *_ in downloads(hub)], []
    assert len(open_named_rows(pinned, "train")) == 800
    assert [name for name, *_ in downloads(hub)] == [*before, SHARD]
    assert before


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_file_that_is_not_what_the_manifest_says_is_named(
    hub: Hub, repository: Repository, files: dict[str, bytes], damage: str
) -> None:
    damaged = {"altered": {SHARD: files[SHARD][:-1] + b"x"}, "truncated": {SHARD: files[SHARD][:-8]}, "missing": {}}
    repository.commit({name: files[name] for name in files if name != SHARD} | damaged[damage])
    with pytest.raises(FolderError, match=rf"^hf:{NAME}@[0-9a-f]+: .*{SHARD} is (damaged|missing)"):
        open_named_rows(pin_rows(f"hf:{NAME}"), "train")
    assert len(open_named_rows(pin_rows(f"hf:{NAME}"), "held_out")) == 400


def test_file_damaged_in_the_cache_is_downloaded_again_once_it_is_removed(hub: Hub, files: dict[str, bytes]) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    shard = folder_of_rows(pinned) / SHARD
    shard.resolve().write_bytes(files[SHARD][:-1] + b"x")
    with pytest.raises(FolderError, match=f"{SHARD} is damaged.*remove"):
        open_named_rows(pinned, "train")
    shard.resolve().unlink()
    shard.unlink()
    assert len(open_named_rows(pinned, "train")) == 800


def test_cached_rows_are_opened_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pin_rows(f"hf:{NAME}")
    folder_of_rows(pinned)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pin_rows(pinned) == pin_rows(f"hf:{NAME}") == pinned
    assert len(open_named_rows(pinned, "train")) == 800


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("hf:rows", "'hf:rows'.*hf:OWNER/NAME"),
        ("hf:owner/none", "owner/none"),
        (f"hf:{NAME}@nope", f"{NAME}.*'nope'"),
        (f"hf:{NAME}@{'f' * 40}", f"{NAME}.*ffff"),
    ],
)
def test_rows_that_do_not_exist_are_named_in_one_line(name: str, named: str, waits: list[float]) -> None:
    with pytest.raises(DataError, match=named) as caught:
        folder_of_rows(pin_rows(name))
    assert "\n" not in str(caught.value)
    assert waits == []
