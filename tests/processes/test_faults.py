"""Processes that hang, run out of memory or are killed: nothing is lost, none waits for ever, and a line says why."""

import random
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from longmlm.training.run_folder import checkpoint_folder, list_checkpoints, newest_verified
from tests.support.launching import (
    ALONE,
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


def test_a_rank_that_runs_out_of_memory_later_ends_the_run_and_says_what_to_set(settings, tmp_path):
    settings = with_runtime(settings, rows_per_micro_batch=None)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("rows-later", 1, 2))
    [error] = errors_in(output)
    assert code != 0 and "micro-batches of 5 rows: set runtime.rows_per_micro_batch = 2; the same command" in error


def test_torchrun_restarts_all_processes_when_one_was_killed_whichever_is_late(settings, pair, tmp_path):
    code, output = run_to_end(settings, tmp_path, TORCHRUN, *faulty("die", 1, 6))
    assert code == 0, output[-2000:]
    assert (Path(settings.run) / "died").exists()
    assert_same_model(pair["undisturbed"].run, Path(settings.run), 12)
    assert losses(pair["undisturbed"].run) == losses(Path(settings.run))


@pytest.mark.parametrize(
    ("launcher", "num_rounds", "steps", "longest"),
    [(ALONE, 2, 120, 1.0), pytest.param(TWO_PROCESSES, 30, 4500, 3.0, marks=pytest.mark.slow)],
)
def test_a_run_that_is_killed_again_and_again_equals_an_undisturbed_one(
    settings, train, launcher, num_rounds, steps, longest
):
    generator, folder = random.Random(num_rounds), Path(settings.run).parent
    settings = with_recipe(settings, num_steps=steps, held_out=replace(settings.recipe.held_out, max_rows=6))
    settings = with_runtime(settings, save_every_steps=3, evaluate_every_steps=7, log_every_steps=5)
    complete = train if launcher is ALONE else partial(trained, folder=folder)
    uninterrupted = complete(replace(settings, run=str(folder / "uninterrupted")))
    run, reached = Path(settings.run), []
    for _ in range(num_rounds):
        before = list_checkpoints(run)[-1:]
        process = start(settings, folder, launcher)
        while process.poll() is None and list_checkpoints(run)[-1:] == before:
            time.sleep(0.05)
        time.sleep(generator.uniform(0, longest))
        if process.poll() is None:
            kill(process, "all" if launcher is ALONE else generator.choice(["one", "all"]), generator)
        finish(process, folder)
        newest = newest_verified(run)
        reached.append(newest.folder)
        assert newest.skipped == ()
    complete(settings)
    assert len(set(reached)) > num_rounds // 2
    assert_same_model(uninterrupted, run, steps)
    assert losses(uninterrupted) == losses(run)


def kill(process: subprocess.Popen[bytes], which: str, generator: random.Random) -> None:
    """Sends SIGKILL to the launcher and all its processes at once, or to one that trains."""
    everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    trainers = [child for child in everything[1:] if any("pretrain.py" in part for part in child.cmdline())]
    for doomed in everything if which == "all" or not trainers else [generator.choice(trainers)]:
        doomed.kill()
