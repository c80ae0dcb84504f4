"""The micro-batch that is chosen from free memory, which changes no loss."""

import re
from dataclasses import replace

import pytest
import torch

from longmlm.artifacts.run import MicroBatch
from longmlm.errors import TrainingError
from longmlm.model.architecture import set_dropout
from longmlm.model.cost import USED_SHARE, Work, cost_of, micro_batch_rows
from longmlm.model.loading import load_model
from longmlm.stages import pretrain as stage
from longmlm.training import micro_batch
from longmlm.training.run_folder import checkpoint_folder, read_state
from tests.support.training import losses, state_at, stop_after, with_recipe, with_runtime

LOTS = 10**12


@pytest.fixture
def by_memory(settings):
    """Settings that leave both numbers of rows to the free memory, without dropout."""
    return with_recipe(with_runtime(settings, rows_per_micro_batch=None, rows_per_evaluation_batch=None), dropout=0.0)


@pytest.fixture
def chosen(train, monkeypatch, tmp_path, capsys):
    """Trains with so many free bytes; returns the run, the number of rows that it prints and those of an evaluation."""

    def run(config, free_bytes, name):
        evaluated = []
        with monkeypatch.context() as patched:
            patched.setattr(micro_batch, "free_memory_bytes", lambda: free_bytes)
            frozen = stage.FrozenRows
            patched.setattr(stage, "FrozenRows", lambda *inputs: evaluated.append(inputs[4]) or frozen(*inputs))
            capsys.readouterr()
            folder = train(replace(config, run=str(tmp_path / name)))
        printed = re.search(r"micro-batches of (\d+) rows? per process", capsys.readouterr().out)
        return folder, printed and int(printed[1]), evaluated[0]

    return run


@pytest.fixture
def free_for(uninterrupted):
    """Returns the free bytes in which so many rows fit, and half a row more."""
    model = load_model(str(checkpoint_folder(uninterrupted, 12))).model
    set_dropout(model, 0.0)
    cost = cost_of(model, Work(32, 0.15, is_half=False))
    return lambda num_rows: int((0.75 * cost.state_bytes + (num_rows + 0.5) * cost.row_bytes) / USED_SHARE)


def test_as_many_rows_as_fit_are_taken_and_the_losses_stay(by_memory, chosen, free_for, train, tmp_path):
    runs = [chosen(by_memory, free, str(free)) for free in (free_for(1), free_for(3), LOTS)]
    rows_per_step = read_state(checkpoint_folder(runs[0][0], 12)).state.cursor // 12
    assert [num_rows for _, num_rows, _ in runs] == [1, 3, rows_per_step]
    for run, _, _ in runs[1:]:
        assert losses(run) == pytest.approx(losses(runs[0][0]), rel=1e-5)
    set_by_hand = replace(with_runtime(by_memory, rows_per_micro_batch=3), run=str(tmp_path / "three"))
    assert losses(train(set_by_hand)) == losses(runs[1][0]) != losses(runs[2][0])


def test_an_evaluation_takes_the_rows_that_fit_and_sixteen_at_most(by_memory, chosen, free_for):
    few, many = (chosen(by_memory, free, str(free))[2] for free in (free_for(1), LOTS))
    assert 1 <= few < many == 16


def test_a_number_that_is_set_is_kept_whatever_memory_is_free(settings, chosen):
    settings = with_runtime(settings, rows_per_evaluation_batch=5)
    assert chosen(settings, 1, "run")[1:] == (None, 5)


def test_a_resumed_run_may_choose_another_number(half_trained, chosen, uninterrupted):
    by_memory = with_runtime(half_trained, rows_per_micro_batch=None)
    run, num_rows, _ = chosen(by_memory, LOTS, "run")
    assert num_rows > half_trained.runtime.rows_per_micro_batch
    states = [read_state(checkpoint_folder(folder, 12)).state for folder in (run, uninterrupted)]
    assert states[0].cursor == states[1].cursor and states[0].tokens == states[1].tokens
    assert losses(run)[:4] == losses(uninterrupted)[:4]


@pytest.mark.parametrize(
    ("is_recomputed", "num_free", "expected"), [(False, 4, 3), (False, 2.4, 3), (False, 1, 1), (True, 10**6, 10)]
)
def test_a_resumed_run_keeps_its_micro_batch_while_it_fits_on_the_same_devices(
    by_memory, chosen, free_for, is_recomputed, num_free, expected
):
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            chosen(by_memory, free_for(3), "run")
    resumed = with_runtime(by_memory, activation_checkpointing=is_recomputed)
    run, num_rows, _ = chosen(resumed, free_for(num_free), "run")
    assert num_rows == expected == state_at(run, 12).micro_batch.num_rows


def test_the_micro_batch_of_another_number_of_processes_or_device_is_chosen_anew(by_memory, monkeypatch):
    saved = MicroBatch(num_rows=3, num_processes=2, device="cpu", is_recomputed=False)
    assert micro_batch.micro_batch_of(by_memory.runtime, 2, 3) == saved
    assert micro_batch.micro_batch_of(by_memory.runtime, 4, 3) == replace(saved, num_processes=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert micro_batch.micro_batch_of(by_memory.runtime, 2, 3) == replace(saved, device="NVIDIA H200")


@pytest.mark.parametrize(
    ("is_recomputed", "remedy"),
    [
        (False, "set activation_checkpointing = true"),
        (True, "read shorter rows, or use a machine with more memory"),
    ],
)
def test_too_little_memory_for_one_row_is_refused_before_training(by_memory, chosen, tmp_path, is_recomputed, remedy):
    config = with_runtime(by_memory, activation_checkpointing=is_recomputed)
    with pytest.raises(TrainingError, match=rf"to train with one row at a time, but only 0\.0 GB are free: {remedy}$"):
        chosen(config, 1_000, "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("num_fitting", "share", "row_length", "has_gpu", "expected"),
    [
        (29, 64, 1536, True, 29),
        (29, 8, 1536, True, 8),
        (29, 64, 384, False, 5),
        (29, 64, 4096, False, 1),
        (2, 64, 384, False, 2),
        (29, 3, 384, False, 3),
    ],
)
def test_a_cpu_takes_two_thousand_tokens_and_no_rank_more_than_its_share(
    num_fitting, share, row_length, has_gpu, expected
):
    assert micro_batch_rows(num_fitting, share, row_length, has_gpu) == expected
