"""Launches on one machine: two processes train as one, and launches that mean something else are refused."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.settings.shipped import LAUNCHES
from longmlm.training import loop
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.faulty import happen
from tests.support.launching import TWO_PROCESSES, accelerate, errors_in, faulty, run_to_end, trained
from tests.support.training import (
    ROOT,
    assert_same_metrics,
    assert_same_model,
    losses,
    state_at,
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


FSDP = "distributed_type: FSDP\nnum_processes: 2\nmain_process_port: 0\nfsdp_config: {fsdp_version: 2}\n"
BF16 = "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: bf16\n"


@pytest.mark.parametrize(
    ("yaml", "options", "named"),
    [
        (FSDP, [], "distributed_type = FSDP in {file} is not supported: use {launches}/zero-3.yaml"),
        pytest.param(BF16, [], "mixed_precision = bf16 in {file} is not supported: remove it", marks=pytest.mark.slow),
        pytest.param("", ["--dynamo_backend", "eager"], "--dynamo_backend = eager on acc", marks=pytest.mark.slow),
        ("", [], "ACCELERATE_GRADIENT_ACCUMULATION_STEPS = 4 in the environment is not supported"),
    ],
    ids=["fsdp", "mixed precision", "dynamo", "accumulation"],
)
def test_a_launch_that_sets_what_the_run_would_not_follow_is_refused_in_one_line(
    settings, tmp_path, monkeypatch, yaml, options, named
):
    file = tmp_path / "launch.yaml"
    file.write_text(yaml or "distributed_type: 'NO'\nnum_processes: 1\n", encoding="utf-8")
    if not yaml and not options:
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file), *options)
    code, output = run_to_end(settings, tmp_path, launcher)
    [error] = errors_in(output)
    assert code != 0 and named.format(file=file, launches=LAUNCHES) in error
    assert not Path(settings.run).exists()


def test_two_processes_skip_an_update_in_fp16_when_a_gradient_of_one_is_not_finite(
    settings, tmp_path, monkeypatch, train
):
    """Were it skipped on one rank only, the weights of the ranks would differ, and the losses from one process's."""
    settings = with_recipe(settings, precision="fp16", dropout=0.0)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("nan-gradient", 1, 5))
    assert code == 0, output[-2000:]
    update = loop.one_update

    def spoiled(task, run, batches, state):
        if state.step == 5:
            happen("nan-gradient", run)
        return update(task, run, batches, state)

    monkeypatch.setattr(loop, "one_update", spoiled)
    alone = train(replace(settings, run=str(tmp_path / "alone")))
    states = [state_at(run, 12) for run in (alone, Path(settings.run))]
    assert [(state.skipped_steps, state.cursor) for state in states] == [(1, states[0].cursor)] * 2
    assert losses(Path(settings.run)) == pytest.approx(losses(alone), abs=2e-3)
    assert len(losses(alone)) == 12
    dated = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d step (\d+)/12 mlm loss .* tokens/s", output, re.MULTILINE)
    assert dated == [str(step) for step in range(1, 13)]
    assert not re.search(r"\r|%\||it/s", output)


def test_the_package_is_launched_as_a_module_without_a_script(settings, tmp_path):
    module = ("-m", "longmlm.stages.pretrain")
    code, output = run_to_end(replace(settings, dry_run=True), tmp_path, TWO_PROCESSES, *module)
    assert code == 0, output[-2000:]
    assert "processes   2 on " in output


def test_every_rank_takes_the_rows_that_fit_on_the_fullest(settings, tmp_path):
    settings = with_runtime(settings, rows_per_micro_batch=None)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("memory", 1, 1_000))
    [error] = errors_in(output)
    assert code != 0 and "one row at a time, but only 0.0 GB are free" in error
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("memory", 1, 900_000))
    assert code == 0, output[-2000:]
    assert re.findall(r"micro-batches of (\d+) rows", output) == ["2"]


@pytest.mark.parametrize("exported", [None, 3])
def test_exported_number_of_threads_reaches_every_rank_and_the_launchers_own_does_not(tmp_path, exported):
    script = tmp_path / "threads.py"
    found = "Path(__file__).with_name(os.environ['LOCAL_RANK']).write_text(str(torch.get_num_threads()))"
    imports = ["import os", "from pathlib import Path", "import torch", "from longmlm.runtime.launch import launch"]
    script.write_text("\n".join([*imports, "launch()", found]))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), **({"OMP_NUM_THREADS": str(exported)} if exported else {})}
    subprocess.run([*TWO_PROCESSES, str(script)], check=True, env=environment)
    expected = exported or max(1, len(os.sched_getaffinity(0)) // 2)
    assert [(tmp_path / rank).read_text() for rank in "01"] == [str(expected)] * 2


def test_every_rank_halves_its_micro_batches_when_one_runs_out_of_memory_before_the_first_step(settings, tmp_path):
    set_by_hand = trained(with_runtime(replace(settings, run=str(tmp_path / "set")), rows_per_micro_batch=2), tmp_path)
    settings = with_runtime(settings, rows_per_micro_batch=None)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("rows", 1, 2))
    assert code == 0, output[-2000:]
    assert re.findall(r"out of memory in step 1: .*", output) == [
        "out of memory in step 1: micro-batches of 2 rows from now on, not 5"
    ]
    assert losses(Path(settings.run)) == losses(set_by_hand)
    assert_same_model(Path(settings.run), set_by_hand, 12)
    assert state_at(Path(settings.run), 12).micro_batch.num_rows == 2


def test_a_rank_that_runs_out_of_memory_later_ends_the_run_and_says_what_to_set(settings, tmp_path):
    settings = with_runtime(settings, rows_per_micro_batch=None)
    code, output = run_to_end(settings, tmp_path, TWO_PROCESSES, *faulty("rows-later", 1, 2))
    [error] = errors_in(output)
    assert code != 0 and "micro-batches of 5 rows: set runtime.rows_per_micro_batch = 2; the same command" in error
    run = trained(with_runtime(settings, rows_per_micro_batch=2), tmp_path)
    assert len(losses(run)) == 12 and newest_verified(run).folder == checkpoint_folder(run, 12)
