"""Running out of memory: smaller micro-batches, and a run that continues as if it had always had them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.errors import TrainingError
from longmlm.runtime.memory import is_out_of_memory
from longmlm.stages.pretrain import pretrain
from longmlm.training import micro_batch
from longmlm.training.backend import PlainBackend
from longmlm.training.optimizer import Optimizer
from tests.support.faulty import limit_rows
from tests.support.tiny import with_fresh_process_state
from tests.support.training import (
    assert_same_model,
    losses,
    state_at,
    stop_after,
    train_until,
    with_runtime,
)

GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")


@pytest.fixture
def automatic(settings):
    """Settings with dropout whose micro-batches have all ten rows of a step."""
    assert settings.recipe.dropout is None
    return with_runtime(settings, rows_per_micro_batch=None)


@pytest.fixture
def limit(monkeypatch):
    """Lets a forward pass in training run out of memory, once it is computed, if it has more rows than this."""
    return lambda num_rows, error=GPU_ERROR: limit_rows(monkeypatch.setattr, num_rows, error)


@pytest.fixture
def fails_once(monkeypatch):
    """Lets the backward pass of the second micro-batch of a step run out of memory once, its gradients computed."""

    def patch(step):
        backward, passes = PlainBackend.backward, []

        def failing(backend, loss):
            backward(backend, loss)
            passes.append(
                max((int(state["step"]) for state in backend.optimizer.torch_optimizer.state.values()), default=0)
            )
            if passes[-1] == step - 1 and passes.count(step - 1) == 2:
                raise GPU_ERROR

        monkeypatch.setattr(PlainBackend, "backward", failing)
        return passes

    return patch


def named(settings, tmp_path, name, **runtime):
    return with_runtime(replace(settings, run=str(tmp_path / name)), **runtime)


@pytest.mark.parametrize("error", [GPU_ERROR, CPU_ERROR])
def test_a_run_that_runs_out_of_memory_equals_one_with_micro_batches_that_fit(
    automatic, train, limit, tmp_path, capsys, error
):
    set_by_hand = train(named(automatic, tmp_path, "set", rows_per_micro_batch=2))
    whole = train(named(automatic, tmp_path, "whole"))
    limit(2, error)
    capsys.readouterr()
    run = train(automatic)
    lines = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert state_at(whole, 12).micro_batch.num_rows == 10 and len(lines) == 2
    assert "out of memory in step 1: micro-batches of 5 rows from now on, not 10" in lines[0]
    assert "out of memory in step 1: micro-batches of 2 rows from now on, not 5" in lines[1]
    assert losses(run) == losses(set_by_hand) != losses(whole)
    assert_same_model(run, set_by_hand, 12)
    assert state_at(run, 12).micro_batch.num_rows == 2


@pytest.mark.parametrize("num_loader_workers", [0, 1])
def test_a_step_that_fails_half_way_is_repeated_with_its_dropout_and_without_its_gradients(
    automatic, train, fails_once, tmp_path, monkeypatch, num_loader_workers
):
    monkeypatch.setattr(micro_batch, "micro_batch_rows", lambda *_: 4)
    by_hand = named(automatic, tmp_path, "by hand", num_loader_workers=num_loader_workers)
    train_until(by_hand, 4)
    expected = train(with_runtime(by_hand, rows_per_micro_batch=2))
    passes = fails_once(step=5)
    run = train(with_runtime(automatic, num_loader_workers=num_loader_workers, checkpoints_kept=3))
    assert [passes.count(step) for step in (0, 3, 4, 5)] == [3, 3, 2 + 5, 5]
    assert losses(run) == losses(expected) and len(losses(run)) == 12
    assert_same_model(run, expected, 12)
    assert state_at(run, 4).micro_batch.num_rows == 4 and state_at(run, 8).micro_batch.num_rows == 2


def test_a_resumed_run_keeps_the_micro_batch_that_fits(automatic, train, limit, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        limit_rows(patched.setattr, 2, GPU_ERROR)
        uninterrupted = train(named(automatic, tmp_path, "uninterrupted"))
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(automatic)
    capsys.readouterr()
    run = train(automatic)
    assert "micro-batches of 2 rows per process" in capsys.readouterr().out
    assert losses(run) == losses(uninterrupted)
    assert_same_model(run, uninterrupted, 12)


def test_a_number_that_the_user_set_is_not_changed(settings, train, limit):
    limit(2)
    expected = (
        r"^out of memory in step 1 with micro-batches of 4 rows: set runtime.rows_per_micro_batch = 2 or leave it out; "
    )
    with pytest.raises(
        TrainingError, match=expected + "the same command resumes from the last checkpoint, if there is one$"
    ):
        train(settings)


@pytest.mark.parametrize(
    ("is_recomputed", "remedy"),
    [
        (False, "set activation_checkpointing = true"),
        (True, "read shorter rows, or use a machine with more memory"),
    ],
)
@pytest.mark.parametrize("rows", [None, 1])
def test_one_row_that_does_not_fit_is_an_error_with_the_remedy(automatic, train, limit, rows, is_recomputed, remedy):
    limit(0)
    with pytest.raises(TrainingError, match=f"^out of memory in step 1 with one row at a time: {remedy}; the same"):
        train(with_runtime(automatic, rows_per_micro_batch=rows, activation_checkpointing=is_recomputed))


def test_an_update_that_changes_weights_is_not_repeated(automatic, train, monkeypatch):
    steps = []

    def failing(*_):
        steps.append(1)
        raise GPU_ERROR

    monkeypatch.setattr(Optimizer, "check_skips", lambda _device: None)
    monkeypatch.setattr(torch.optim.AdamW, "step", failing)
    with pytest.raises(
        TrainingError, match="^out of memory in the update of step 1, after its gradients were computed"
    ):
        train(automatic)
    assert len(steps) == 1


def test_another_error_is_raised_as_it_is(automatic, train, limit):
    limit(2, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="^mat1 and mat2"):
        train(automatic)


def test_the_error_of_a_cpu_without_memory_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


def test_a_dry_run_reports_the_micro_batch_that_fits(automatic, limit, capsys):
    limit(2)
    with_fresh_process_state()
    pretrain(replace(automatic, dry_run=True))
    with_fresh_process_state()
    assert "rows, micro-batches of 2 per process" in capsys.readouterr().out
    assert not Path(automatic.run).exists()
