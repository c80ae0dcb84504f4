"""Prepare from the command line, killed again and again, or on a disk that is full: nothing is lost, nothing half."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from longmlm.config import read
from longmlm.data import engine
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, FolderError
from longmlm.folders import partial_of, verify
from longmlm.processes import exclusive_lock
from longmlm.settings.prepare import PrepareConfig

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "prepare" / "demo.toml"
NUM_KILLS, SLICE_BYTES = 12, 60_000
OVERRIDES = ["--slice-bytes", str(SLICE_BYTES), "--num-workers", "2"]


class Usage(NamedTuple):
    """What shutil.disk_usage returns."""

    total: int
    used: int
    free: int


def command(output: Path) -> list[str]:
    return [sys.executable, "-m", "longmlm", "prepare", str(DEMO), "--output", str(output), *OVERRIDES]


def demo(output: Path, slice_bytes: int = SLICE_BYTES) -> PrepareConfig:
    return replace(read(PrepareConfig, [DEMO]), output=str(output), slice_bytes=slice_bytes, num_workers=1)


def undisturbed(output: Path) -> dict:
    config = demo(output)
    return made(prepare_rows(config, load_vocabulary(config.tokenizer)))


def made(manifest: dict) -> dict:
    """Returns what must not depend on how often a run was killed: the hash of every shard, and every count."""
    shards = {name: about for name, about in manifest["files"].items() if not name.endswith(".html")}
    report = {key: manifest["report"][key] for key in ("train", "held_out", "set_aside")}
    return {"files": shards, "report": report}


def kill(process: subprocess.Popen, whom: str) -> list[psutil.Process]:
    """Sends SIGKILL to a part of a run; returns the processes that it consisted of."""
    main = psutil.Process(process.pid)
    every = [main, *main.children(recursive=True)]
    servers = main.children()
    workers = [worker for server in servers for worker in server.children()]
    match whom:
        case "group":
            os.killpg(process.pid, signal.SIGKILL)
        case "main":
            main.kill()
        case "server" if servers:
            servers[-1].kill()
        case _:
            (workers or [main])[-1].kill()
    return every


@pytest.mark.slow
def test_a_run_killed_at_a_dozen_random_moments_gives_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    assert len(expected["files"]) > 80
    output, moments, kills = tmp_path / "rows", random.Random(0), []
    for attempt in range(6 * NUM_KILLS):
        if len(kills) == NUM_KILLS:
            break
        process = subprocess.Popen(
            command(output), cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not (partial_of(output) / "work").exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 4))
        if process.poll() is None:
            kills.append(("main", "worker", "group", "server")[attempt % 4])
            every = kill(process, kills[-1])
            process.wait(timeout=120)
            assert psutil.wait_procs(every[1:], timeout=60)[1] == []
        if output.exists():
            assert made(verify(output)) == expected
            shutil.rmtree(output)
    assert set(kills) == {"main", "worker", "group", "server"}
    assert len(kills) == NUM_KILLS
    subprocess.run(command(output), cwd=ROOT, check=True, capture_output=True)
    assert made(verify(output)) == expected
    assert not partial_of(output).exists()
    assert not list(output.rglob("*.partial"))


def largest_worker(output: Path, slice_bytes: int) -> int:
    """Returns the most bytes that a worker of a run was seen to hold."""
    process = subprocess.Popen(
        [*command(output), "--slice-bytes", str(slice_bytes)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    largest = 0
    while process.poll() is None:
        with suppress(psutil.Error):
            descendants = psutil.Process(process.pid).children(recursive=True)
            largest = max([largest, *(one.memory_info().rss for one in descendants)])
        time.sleep(0.02)
    assert process.returncode == 0
    return largest


@pytest.mark.slow
def test_memory_of_a_worker_does_not_grow_with_the_slices_that_it_packs(tmp_path: Path) -> None:
    """Imported libraries are 170 MB of it; a copy of the tokenizer for each of the slices is 400 MB more."""
    assert 100_000_000 < largest_worker(tmp_path / "rows", 12_000) < 400_000_000
    assert len(list((tmp_path / "rows" / "train").iterdir())) > 100


def in_small_disk(script: str) -> subprocess.CompletedProcess:
    """Runs a shell script in a namespace of its own, where it may mount."""
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["full", "limited"])
def test_a_full_disk_ends_prepare_in_a_line_and_keeps_finished_slices(tmp_path: Path, disk: str) -> None:
    mount, output = tmp_path / "disk", tmp_path / "disk" / "rows"
    mount.mkdir()
    mounted = disk == "full" and in_small_disk(f"mount -t tmpfs -o size=1m none {mount}").returncode == 0
    if disk == "full" and not mounted:
        pytest.skip("this machine lets nobody mount a small disk")
    expected = undisturbed(tmp_path / "undisturbed")
    sizes = {name: about["bytes"] for name, about in expected["files"].items() if name.endswith(".arrow")}
    blocks = 1 + max(size for name, size in sizes.items() if "slice-00000" in name or "slice-00001" in name) // 512
    assert max(sizes.values()) > 512 * blocks
    completions = partial_of(output) / "work" / "completions"
    prepare = shlex.join(command(output))
    begin = f"mount -t tmpfs -o size=1340k none {mount}; {prepare}" if mounted else f"(ulimit -f {blocks}; {prepare})"
    more = f"mount -o remount,size=90m {mount}; " if mounted else ""
    done = in_small_disk(
        f"{begin}; echo code $?; ls -d {output}; ls {completions} | wc -l; "
        f"find {output}.partial -name '*.arrow.partial' -o -size 0 -name '*.arrow'; "
        f"echo again; {more}{prepare}; cp -r {output} {tmp_path / 'rows'}"
    )
    first, again = done.stdout.split("again\n")
    code, finished = first.splitlines()
    assert code == "code 2"
    assert 0 < int(finished) < 43
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "the disk is full" in errors[0] and "finished slices are kept" in errors[0]
    assert "rows:" in again
    assert made(verify(tmp_path / "rows")) == expected


def test_a_disk_too_small_for_the_rows_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = demo(tmp_path / "rows", 600_000)
    vocabulary = load_vocabulary(config.tokenizer)
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda _: Usage(9_000_000, 8_000_000, 1_000_000))
    with pytest.raises(DataError, match=r"the rows need about 1\.3 MB and 1\.0 MB are free") as raised:
        prepare_rows(config, vocabulary)
    assert "free some space or name another output" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_not_done_needs_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = demo(tmp_path / "rows", 600_000)
    vocabulary = load_vocabulary(config.tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "seal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_rows(config, vocabulary)
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda _: Usage(9_000_000, 9_000_000, 0))
    for path in (partial_of(tmp_path / "rows") / "work" / "completions").glob("00002"):
        path.unlink()
    with pytest.raises(DataError, match="the rows need about"):
        prepare_rows(config, vocabulary)
    (partial_of(tmp_path / "rows") / "work" / "completions" / "00002").touch()
    report = prepare_rows(config, vocabulary)["report"]
    assert report["train"]["tokens"] > 100_000
    assert report["tokens_per_second"] == 0  # of this run, which had nothing left to do


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_rows_that_another_process_is_writing_are_left_alone(tmp_path: Path) -> None:
    config = demo(tmp_path / "rows", 600_000)
    with (
        exclusive_lock(partial_of(tmp_path / "rows")),
        pytest.raises(FolderError, match="is being written by another process"),
    ):
        prepare_rows(config, load_vocabulary(config.tokenizer))
    assert not (tmp_path / "rows").exists()
