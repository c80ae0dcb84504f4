"""Prepare as a process: it can be stopped and killed at any moment, or meet a full disk, and no worker outlives it."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from longmlm.artifacts.rows import read_rows_manifest
from longmlm.config import read
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.slices import SliceJob, Work, pack_slice
from longmlm.data.vocabulary import load_vocabulary
from longmlm.folders import partial_of, verify
from longmlm.settings.prepare import PrepareConfig, Source
from longmlm.settings.shipped import SHIPPED

ROOT = Path(__file__).parents[2]
DEMO = SHIPPED / "demo.toml"
NUM_KILLS, SLICE_BYTES = 12, 60_000


def command(output: Path, slice_bytes: int = SLICE_BYTES, num_workers: int = 2) -> list[str]:
    overrides = ["--recipe.slice-bytes", str(slice_bytes), "--runtime.num-workers", str(num_workers)]
    return [sys.executable, "-m", "longmlm", "prepare", str(DEMO), "--output", str(output), *overrides]


def start(output: Path, slice_bytes: int = SLICE_BYTES, **pipes: int) -> subprocess.Popen:
    return subprocess.Popen(command(output, slice_bytes), cwd=ROOT, start_new_session=True, text=True, **pipes)


def undisturbed(output: Path) -> dict:
    recipe = replace(read(PrepareConfig, [DEMO]).recipe, slice_bytes=SLICE_BYTES)
    prepare_rows(recipe, load_vocabulary(recipe.tokenizer), output)
    return made(output)


def made(output: Path) -> dict:
    """Returns what must not depend on how often a run was killed: the hash of every shard, and every count."""
    verify(output)
    manifest = read_rows_manifest(output)
    return {
        "files": manifest.files,
        "report": (manifest.report.train, manifest.report.held_out, manifest.report.set_aside),
    }


def reports(output: Path) -> list[Path]:
    return list((partial_of(output) / "reports").glob("*.json"))


def workers_of(process: subprocess.Popen, output: Path) -> list[psutil.Process]:
    """Returns the workers once some slices are finished."""
    while len(reports(output)) < 2:
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)
    servers = psutil.Process(process.pid).children()
    workers = [worker for server in servers for worker in server.children()]
    assert len(workers) == 2
    return workers


def test_two_workers_write_the_rows_of_one_and_a_killed_worker_is_noticed(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    process = start(output, stderr=subprocess.PIPE)
    workers_of(process, output)[0].kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a worker was killed" in errors.splitlines()[-1]
    assert "num_workers" in errors.splitlines()[-1]
    assert 2 <= len(reports(output)) < 43

    done = subprocess.run(command(output), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert made(output) == undisturbed(tmp_path / "undisturbed")


@pytest.fixture
def sigint_is_not_ignored() -> Iterator[None]:
    """Lets processes of a test receive SIGINT, which a shell ignores for a job in the background, such as pytest."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_is_not_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_prepare_at_once_with_its_workers(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "rows"
    process = start(output, 600_000, stderr=subprocess.PIPE)
    every = [psutil.Process(process.pid)]
    while not list(partial_of(output).rglob("slice-*.partial")):
        assert process.poll() is None, "it ended too early"
        time.sleep(0.01)
    every += every[0].children(recursive=True)
    os.killpg(process.pid, number)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert psutil.wait_procs(every[1:], timeout=5)[1] == []
    assert not output.exists()


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
        process = start(output, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (partial_of(output) / "reports").exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 4))
        if process.poll() is None:
            kills.append(("main", "worker", "group", "server")[attempt % 4])
            every = kill(process, kills[-1])
            process.wait(timeout=120)
            assert psutil.wait_procs(every[1:], timeout=60)[1] == []
        if output.exists():
            assert made(output) == expected
            shutil.rmtree(output)
    assert set(kills) == {"main", "worker", "group", "server"}
    assert len(kills) == NUM_KILLS
    subprocess.run(command(output), cwd=ROOT, check=True, capture_output=True)
    assert made(output) == expected
    assert not partial_of(output).exists()
    assert not list(output.rglob("*.partial"))


def test_three_workers_find_the_copies_that_one_finds_also_if_killed_between_survey_and_packing(tmp_path: Path) -> None:
    demo = SHIPPED.parent / "bundled" / "text" / "demo.jsonl"
    texts = [json.loads(line)["text"] for line in demo.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({"text": text[:4_000]}) for text in [*texts, *(f"A title. {text}" for text in texts)]]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = Source(files=(str(tmp_path / "corpus.jsonl"),))
    changes = {"sources": (source,), "slice_bytes": SLICE_BYTES, "duplicates": "near"}
    recipe = replace(read(PrepareConfig, [DEMO]).recipe, **changes)
    vocabulary, works = load_vocabulary(recipe.tokenizer), []
    expected = prepare_rows(recipe, vocabulary, tmp_path / "one").report
    assert expected.set_aside["near duplicate"] == expected.duplicates.count == len(texts)

    def three_workers(job: SliceJob, numbers: Sequence[int], work: Work = pack_slice) -> None:
        works.append((work.__name__, len(numbers)))
        if len(works) == 2:
            raise KeyboardInterrupt
        run_slices(job, numbers, work, num_workers=3)

    with pytest.raises(KeyboardInterrupt):
        prepare_rows(recipe, vocabulary, tmp_path / "rows", three_workers)
    prepare_rows(recipe, vocabulary, tmp_path / "rows", three_workers)
    assert made(tmp_path / "rows") == made(tmp_path / "one")
    num_slices = works[0][1]
    assert num_slices > 9
    assert [number for name, number in works if name == "survey_slice"] == [num_slices, 0]
    assert [number for name, number in works if name == "pack_slice"] == [num_slices] * 2


def largest_worker(output: Path, slice_bytes: int) -> int:
    """Returns the most bytes that a worker of a run was seen to hold."""
    process = start(output, slice_bytes, stderr=subprocess.DEVNULL)
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
    """Imported libraries are 170 MB of it; a copy of the tokenizer for each of the slices would be 400 MB more."""
    assert 100_000_000 < largest_worker(tmp_path / "rows", 12_000) < 400_000_000
    assert len(list((tmp_path / "rows" / "train").iterdir())) > 100


def in_small_disk(script: str) -> subprocess.CompletedProcess:
    """Runs a shell script in a namespace of its own, in which it may mount."""
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["full", "limited"])
def test_a_full_disk_ends_prepare_in_a_line_and_keeps_finished_slices(tmp_path: Path, disk: str) -> None:
    mount, output = tmp_path / "disk", tmp_path / "disk" / "rows"
    mount.mkdir()
    mounted = disk == "full" and in_small_disk(f"mount -t tmpfs -o size=1m none {mount}").returncode == 0
    if disk == "full" and not mounted:
        pytest.skip("this machine does not let a user mount a small disk")
    expected = undisturbed(tmp_path / "undisturbed")
    sizes = {name: entry.bytes for name, entry in expected["files"].items() if name.endswith(".arrow")}
    blocks = 1 + max(size for name, size in sizes.items() if "slice-00000" in name or "slice-00001" in name) // 512
    assert max(sizes.values()) > 512 * blocks
    finished = partial_of(output) / "reports"
    prepare = shlex.join(command(output, num_workers=2 if mounted else 1))  # workers need a file with the tokenizer
    begin = f"mount -t tmpfs -o size=1340k none {mount}; {prepare}" if mounted else f"(ulimit -f {blocks}; {prepare})"
    more = f"mount -o remount,size=90m {mount}; " if mounted else ""
    done = in_small_disk(
        f"{begin}; echo code $?; ls -d {output}; ls {finished}/*.json | wc -l; "
        f"find {output}.partial/content -name '*.partial' -o -size 0 -name '*.arrow'; "
        f"echo again; {more}{prepare}; find {mount} -name '*.partial*'; cp -r {output} {tmp_path / 'rows'}"
    )
    first, again = done.stdout.split("again\n")
    code, num_finished = first.splitlines()
    assert code == "code 2"
    assert 0 < int(num_finished) < 43
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert ("the disk is full" if mounted else "a file would be larger than allowed") in errors[0]
    assert again.splitlines()[-1] == f"rows: {output}"
    assert made(tmp_path / "rows") == expected
