"""Batches are prepared by worker processes in advance on a GPU, and by the training process on a CPU."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from longmlm.processes import ignore_stop_signals
from longmlm.training import loop
from tests.support.training import train_here, twelve_steps, with_recipe

# This machine may have fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def inputs_of_loader(inputs, tmp_path_factory):
    """What a run makes its loader of."""
    calls, new = [], loop._loader
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "_loader", lambda *inputs: calls.append(inputs) or new(*inputs))
        train_here(with_recipe(twelve_steps(inputs, tmp_path_factory.mktemp("loader") / "run"), num_steps=2))
    [call] = calls
    return call


@pytest.fixture
def new_loader(inputs_of_loader, monkeypatch):
    """Returns a function that returns the run's loader for a device and a number of workers, without starting them."""
    made, (task, run, state) = [], inputs_of_loader

    class Recorded(DataLoader):
        def __iter__(self):
            made.append(self)
            return iter(())

    def loader(has_gpu: bool, num_loader_workers: int | None) -> DataLoader:
        monkeypatch.setattr(loop, "DataLoader", Recorded)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        loop._loader(task, replace(run, runtime=replace(run.runtime, num_loader_workers=num_loader_workers)), state)
        return made.pop()

    return loader


def test_worker_processes_prepare_batches_in_advance_on_a_gpu(new_loader):
    loader = new_loader(has_gpu=True, num_loader_workers=None)
    assert loader.num_workers == 2
    assert loader.prefetch_factor >= 2
    assert loader.pin_memory


def test_the_training_process_prepares_batches_on_a_cpu(new_loader):
    loader = new_loader(has_gpu=False, num_loader_workers=None)
    assert (loader.num_workers, loader.prefetch_factor, loader.pin_memory) == (0, None, False)


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_number_of_workers_that_is_set_is_kept(new_loader, has_gpu, number):
    loader = new_loader(has_gpu, number)
    assert loader.num_workers == number
    assert loader.worker_init_fn is ignore_stop_signals
