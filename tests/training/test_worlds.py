"""One run on one, two and four processes in turn: rows, masks and losses are those of a run that never moved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.training import checkpoint
from longmlm.training.checkpoint import folder_of
from tests.training.test_faults import ACCELERATE, faulty, finish, start
from tests.training.test_nodes import assert_same_record
from tests.training.test_run import stop_after


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize("worlds", [(2,), pytest.param((2, 4), marks=pytest.mark.slow)])
def test_a_run_that_moves_to_other_numbers_of_processes_and_back_trains_on_the_same_batches(
    settings, train, tmp_path, monkeypatch, worlds
):
    settings = replace(settings, recipe=replace(settings.recipe, dropout=0.0))
    undisturbed, run = train(replace(settings, run=str(tmp_path / "whole"))), Path(settings.run)
    settings = replace(settings, runtime=replace(settings.runtime, save_every_steps=2))
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        with pytest.raises(SystemExit):
            train(settings)
    assert checkpoint.newest_verified(run).folder == folder_of(run, 2)
    for place, num_processes in enumerate(worlds):
        launcher = (*ACCELERATE, "--num_processes", str(num_processes))
        meant = replace(settings, runtime=replace(settings.runtime, num_processes=num_processes))
        last = 5 + 3 * place
        code, said = finish(
            start(meant, tmp_path, launcher, *faulty("terminate", num_processes - 1, last - 1)), tmp_path
        )
        assert code == 0, said[-2000:]
        assert checkpoint.newest_verified(run).folder == folder_of(run, last)
    train(settings)
    assert_same_record(undisturbed, run)
    one, other = (load_file(folder_of(place, 12) / "model.safetensors") for place in (undisturbed, run))
    earlier = load_file(folder_of(undisturbed, 8) / "model.safetensors")
    assert one.keys() == other.keys() and len(one) > 20
    assert farthest(one, other) < 1e-5
    assert farthest(one, earlier) > 1e-3
