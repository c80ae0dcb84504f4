"""Launches on one machine: two processes train as one, and launches that mean something else are refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import TWO_PROCESSES, accelerate, errors_in, faulty, run_to_end
from tests.support.training import (
    assert_same_metrics,
    stop_after,
    weights_at,
    with_recipe,
    with_runtime,
)


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys() and len(one) > 20
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize("worlds", [(2,), pytest.param((2, 4), marks=pytest.mark.slow)])
def test_a_run_that_moves_to_other_numbers_of_processes_and_back_trains_on_the_same_batches(
    settings, train, tmp_path, monkeypatch, worlds
):
    """One process, then two of which one is terminated in an evaluation, then one, against a run that never moved."""
    settings = with_recipe(settings, dropout=0.0)
    undisturbed, run = train(replace(settings, run=str(tmp_path / "undisturbed"))), Path(settings.run)
    settings = with_runtime(settings, save_every_steps=2)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        with pytest.raises(SystemExit):
            train(settings)
    assert newest_verified(run).folder == checkpoint_folder(run, 2)
    for index, num_processes in enumerate(worlds):
        fault, last = ("terminate", 7) if index else ("terminate-in-evaluation", 4)
        launcher = (*TWO_PROCESSES, "--num_processes", str(num_processes))
        moved = with_runtime(settings, num_processes=num_processes, rows_per_micro_batch=2)
        code, output = run_to_end(moved, tmp_path, launcher, *faulty(fault, num_processes - 1, last - 1))
        assert code == 0, output[-2000:]
        assert newest_verified(run).folder == checkpoint_folder(run, last)
    train(settings)
    assert_same_metrics(undisturbed, run)
    assert farthest(weights_at(undisturbed, 12), weights_at(run, 12)) < 1e-5
    assert farthest(weights_at(run, 12), weights_at(undisturbed, 8)) > 1e-3


@pytest.mark.parametrize(
    ("options", "required", "reason"),
    [
        (["--num_processes", "2"], None, "was to start 2 processes and started only 1"),
        pytest.param(["--num_processes", "2", "--cpu"], None, "started only 1", marks=pytest.mark.slow),
        ([], 2, "runtime.num_processes is 2, but 1 were started"),
    ],
)
def test_a_launch_with_another_number_of_processes_is_refused_in_one_line(
    settings, tmp_path, options, required, reason
):
    settings = with_runtime(settings, num_processes=required)
    code, output = run_to_end(settings, tmp_path, accelerate("single.yaml", *options))
    [error] = errors_in(output)
    assert code != 0 and reason in error
    assert not Path(settings.run).exists()


def test_the_package_is_launched_as_a_module_without_a_script(settings, tmp_path):
    module = ("-m", "longmlm.stages.pretrain")
    code, output = run_to_end(replace(settings, dry_run=True), tmp_path, TWO_PROCESSES, *module)
    assert code == 0, output[-2000:]
    assert "processes   2 on " in output


def test_every_rank_takes_the_rows_that_fit_on_the_fullest(settings, tmp_path):
    settings = with_runtime(settings, rows_per_micro_batch=None)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("memory", 1, 1_000))
    [error] = errors_in(output)
    assert code != 0 and "one row at a time, 0.0 GB are free" in error
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("memory", 1, 990_000))
    assert code == 0, output[-2000:]
    assert re.findall(r"micro-batches of (\d+) rows", output) == ["2"]
