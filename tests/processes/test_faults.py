"""Two processes and a fault in one: nothing is lost, no process waits for ever, and a line says what happened."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from longmlm.artifacts.metrics import MetricsFile
from longmlm.training.run_folder import VerifiedCheckpoint, checkpoint_folder, newest_verified
from tests.support.launching import (
    TWO_PROCESSES,
    errors_in,
    faulty,
    finish,
    has_steps,
    run_to_end,
    start,
    trained,
    wait_until,
)
from tests.support.training import assert_same_model, losses, with_recipe, with_runtime

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


@pytest.fixture
def undisturbed(settings, inputs, tmp_path) -> Path:
    """The run that two undisturbed processes make, once for all tests."""
    run = inputs / "undisturbed-run-of-two"
    return run if checkpoint_folder(run, 12).exists() else trained(replace(settings, run=str(run)), tmp_path)


@pytest.mark.parametrize(
    ("fault", "rank"),
    [("hang", 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("hang-save", 1), ("stop", 0)))],
)
def test_when_a_process_hangs_the_others_exit_in_time_with_a_line(settings, tmp_path, fault, rank):
    settings = with_runtime(settings, hang_seconds=15.0)
    process = start(settings, tmp_path, TWO_PROCESSES, *faulty(fault, rank, 6))
    wait_until(lambda: has_steps(Path(settings.run), 1), process, tmp_path)
    # a stopped process does not receive the launcher's SIGTERM, but its SIGKILL half a minute later
    code, output = finish(process, tmp_path, 100 if fault == "stop" else 60)
    assert code != 0
    assert any("waited 15 s" in line for line in errors_in(output)), output
    assert newest_verified(Path(settings.run)).folder == checkpoint_folder(Path(settings.run), 4)


def test_a_loss_that_is_not_finite_in_one_process_stops_all_before_the_update(settings, tmp_path):
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("nan", 1, 6))
    run = Path(settings.run)
    assert code != 0
    assert "not finite in step 7" in errors_in(output)[0]
    assert len(losses(run)) == 6
    assert newest_verified(run).folder == checkpoint_folder(run, 4)
    noted = [json.loads(path.read_text()) for path in sorted(run.glob("non-finite-*.json"))]
    assert [note["step"] for note in noted] == [7, 7]
    assert all(note["row_ids"] for note in noted)
    assert not set(noted[0]["row_ids"]) & set(noted[1]["row_ids"])


def test_torchrun_restarts_all_processes_when_one_was_killed_whichever_is_late(settings, undisturbed, tmp_path):
    code, output = run_to_end(settings, tmp_path, TORCHRUN, *faulty("die", 1, 6))
    assert code == 0, output[-2000:]
    assert (Path(settings.run) / "died").exists()
    assert_same_model(undisturbed, Path(settings.run), 12)
    assert losses(undisturbed) == losses(Path(settings.run))


@pytest.mark.parametrize("num_rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_equals_an_undisturbed_one(settings, tmp_path, num_rounds):
    generator = random.Random(num_rounds)
    steps = 150 * num_rounds
    settings = with_recipe(settings, num_steps=steps, held_out=replace(settings.recipe.held_out, max_rows=6))
    settings = with_runtime(settings, save_every_steps=3, evaluate_every_steps=7, log_every_steps=5)
    uninterrupted = trained(replace(settings, run=str(tmp_path / "uninterrupted")), tmp_path)
    run, reached = Path(settings.run), []
    for _ in range(num_rounds):
        before = len(MetricsFile(run).lines())
        process = start(settings, tmp_path)
        while process.poll() is None and len(MetricsFile(run).lines()) <= before:
            time.sleep(0.05)
        time.sleep(generator.uniform(0, 3))
        if process.poll() is None:
            kill(process, generator.choice(["one", "all"]), generator)
        finish(process, tmp_path)
        newest = newest_verified(run)
        reached.append(newest.folder)
        assert newest.skipped == ()
    trained(settings, tmp_path)
    assert len(set(reached)) > num_rounds // 2
    assert_same_model(uninterrupted, run, steps)
    assert losses(uninterrupted) == losses(run)


def kill(process: subprocess.Popen[bytes], which: str, generator: random.Random) -> None:
    """Sends SIGKILL to the launcher and all its processes at once, or to one that trains."""
    everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    trainers = [child for child in everything[1:] if any("pretrain.py" in part for part in child.cmdline())]
    for doomed in everything if which == "all" or not trainers else [generator.choice(trainers)]:
        doomed.kill()


def test_a_full_disk_stops_two_processes_with_a_line_and_the_run_resumes_when_there_is_space(
    settings, undisturbed, tmp_path
):
    run = Path(settings.run)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("full", -1, 6))
    assert code != 0
    (error,) = errors_in(output)
    assert "step-00000004 is kept: a file would be larger than allowed" in error, output
    assert "Traceback" not in output.split("error: ")[0]
    assert newest_verified(run) == VerifiedCheckpoint(checkpoint_folder(run, 4), ())
    assert not list(run.glob("checkpoints/*.partial"))
    trained(settings, tmp_path)
    assert_same_model(undisturbed, run, 12)
    assert losses(undisturbed) == losses(run)
