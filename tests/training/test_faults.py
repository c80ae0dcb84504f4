"""Two processes, and a fault in one: nothing is lost, nobody waits for ever, and a line says what happened."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from longmlm.config import to_toml
from longmlm.settings.pretrain import PretrainConfig
from longmlm.training import checkpoint, tracking
from longmlm.training.checkpoint import folder_of
from tests.training.test_run import assert_same_model, losses

ROOT = Path(__file__).parents[2]
TWO = ("--config_file", str(ROOT / "configs" / "accelerate" / "two-cpu-processes.yaml"), "--main_process_port", "0")
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", *TWO)
TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--standalone",
    "--max-restarts",
    "1",
)


def start(settings: PretrainConfig, folder: Path, launcher: tuple[str, ...], *script: str) -> subprocess.Popen[bytes]:
    """Starts training in a process group of its own."""
    file = folder / "settings.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    script = script or (str(ROOT / "pretrain.py"),)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    (folder / "said.txt").unlink(missing_ok=True)
    with (folder / "said.txt").open("w") as said:
        command = [*launcher, *script, str(file)]
        streams = {"stdout": said, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams)


def finish(process: subprocess.Popen[bytes], folder: Path, seconds: float = 600) -> tuple[int, str]:
    """Returns exit code and output; a process that does not end in time is killed with all that it started."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            one.kill()
        process.wait()
        pytest.fail((folder / "said.txt").read_text(encoding="utf-8")[-3000:])
    return process.returncode, (folder / "said.txt").read_text(encoding="utf-8")


def faulty(fault: str, rank: int, step: int) -> tuple[str, ...]:
    return (str(ROOT / "tests" / "training" / "faulty.py"), fault, str(rank), str(step))


def told(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("error: ")]


@pytest.fixture
def whole(settings, ground, tmp_path) -> Path:
    """The run that two undisturbed processes make, once for all tests."""
    run = ground / "whole-of-two"
    if not folder_of(run, 12).exists():
        assert finish(start(replace(settings, run=str(run)), tmp_path, ACCELERATE), tmp_path)[0] == 0
    return run


@pytest.mark.parametrize(
    ("fault", "rank"),
    [("hang", 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("hang-save", 1), ("stop", 0)))],
)
def test_when_a_process_hangs_the_others_end_in_time_with_a_line(settings, tmp_path, fault, rank):
    settings = replace(settings, runtime=replace(settings.runtime, hang_seconds=15.0))
    process = start(settings, tmp_path, ACCELERATE, *faulty(fault, rank, 6))
    while process.poll() is None and not losses(Path(settings.run)):
        time.sleep(0.5)
    began = time.monotonic()
    if fault == "stop":  # a stopped process does not hear the launcher's SIGTERM, but its SIGKILL half a minute later
        code, said = finish(process, tmp_path, 120)
    else:
        code, said = finish(process, tmp_path, 60)
    assert code != 0
    assert time.monotonic() - began < 100
    assert any("waited 15 s for its fellows" in line for line in told(said)), said
    assert checkpoint.newest_verified(Path(settings.run)).folder == folder_of(Path(settings.run), 4)


def test_a_loss_that_is_no_number_in_one_process_stops_all_before_the_update(settings, tmp_path):
    code, said = finish(start(settings, tmp_path, ACCELERATE, *faulty("nan", 1, 6)), tmp_path)
    run = Path(settings.run)
    assert code != 0
    assert "not finite in step 7" in told(said)[0]
    assert len(losses(run)) == 6
    assert checkpoint.newest_verified(run).folder == folder_of(run, 4)
    noted = [json.loads(path.read_text()) for path in sorted(run.glob("non-finite-*.json"))]
    assert [one["step"] for one in noted] == [7, 7]
    assert all(one["row_ids"] for one in noted)
    assert not set(noted[0]["row_ids"]) & set(noted[1]["row_ids"])


def test_torchrun_starts_all_again_once_when_one_was_killed_whoever_is_late(settings, whole, tmp_path):
    code, said = finish(start(settings, tmp_path, TORCHRUN, *faulty("die", 1, 6)), tmp_path)
    assert code == 0, said[-2000:]
    assert (Path(settings.run) / "died").exists()
    assert_same_model(whole, Path(settings.run), 12)
    assert losses(whole) == losses(Path(settings.run))


@pytest.mark.parametrize("num_rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(settings, tmp_path, num_rounds):
    generator = random.Random(num_rounds)
    steps = 150 * num_rounds
    settings = replace(
        settings,
        recipe=replace(settings.recipe, num_steps=steps),
        runtime=replace(settings.runtime, save_every_steps=3, evaluate_every_steps=7, log_every_steps=5),
        held_out=replace(settings.held_out, max_rows=6),
    )
    whole = replace(settings, run=str(tmp_path / "whole"))
    assert finish(start(whole, tmp_path, ACCELERATE), tmp_path, 1200)[0] == 0
    run, reached = Path(settings.run), []
    for _ in range(num_rounds):
        before = len(tracking.read(run))
        process = start(settings, tmp_path, ACCELERATE)
        while process.poll() is None and len(tracking.read(run)) <= before:
            time.sleep(0.05)
        time.sleep(generator.uniform(0, 3))
        if process.poll() is None:
            kill(process, generator.choice(["one", "all"]), generator)
        finish(process, tmp_path)
        newest = checkpoint.newest_verified(run)
        reached.append(newest.folder)
        assert newest.skipped == ()
    code, said = finish(start(settings, tmp_path, ACCELERATE), tmp_path, 1200)
    assert code == 0, said[-2000:]
    assert len(set(reached)) > num_rounds // 2
    assert_same_model(Path(whole.run), run, steps)
    assert losses(Path(whole.run)) == losses(run)


def kill(process: subprocess.Popen[bytes], which: str, generator: random.Random) -> None:
    """Sends SIGKILL to the launcher and all its processes at once, or to one that trains."""
    every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    trainers = [one for one in every[1:] if one.name() and any("pretrain.py" in part for part in one.cmdline())]
    for doomed in every if which == "all" or not trainers else [generator.choice(trainers)]:
        doomed.kill()


def test_a_disk_that_is_full_ends_two_processes_with_a_line_and_the_run_goes_on_when_there_is_room(
    settings, whole, tmp_path
):
    run = Path(settings.run)
    code, said = finish(start(settings, tmp_path, ACCELERATE, *faulty("full", -1, 6)), tmp_path)
    assert code != 0
    assert len(told(said)) == 1 and "the one before it is kept: free some space" in told(said)[0], said
    assert "Traceback" not in said.split("error: ")[0]
    assert checkpoint.newest_verified(run) == checkpoint.VerifiedCheckpoint(folder_of(run, 4), ())
    assert not list(run.glob("checkpoints/*.partial"))
    code, said = finish(start(settings, tmp_path, ACCELERATE), tmp_path)
    assert code == 0, said[-2000:]
    assert_same_model(whole, run, 12)
    assert losses(whole) == losses(run)
