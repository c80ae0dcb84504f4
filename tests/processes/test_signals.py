"""Stop signals to a run, its launcher and their process group: the run saves and exits."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import ALONE, TWO_PROCESSES, accelerate, finish, has_steps, start, wait_until
from tests.support.training import training_lines, with_recipe, with_runtime


@pytest.fixture
def endless(settings):
    """A run that saves only when it is stopped."""
    return with_runtime(with_recipe(settings, num_steps=100_000), save_every_steps=100_000)


def assert_saved_at_the_last_step(run: Path) -> None:
    last = training_lines(run)[-1].step
    assert newest_verified(run).folder == checkpoint_folder(run, last)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("launcher", [ALONE, pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)])
def test_a_signal_to_the_whole_group_saves_also_with_loader_workers(endless, tmp_path, launcher, number):
    process = start(with_runtime(endless, num_loader_workers=1), tmp_path, launcher)
    wait_until(lambda: has_steps(Path(endless.run), 3), process, tmp_path)
    os.killpg(process.pid, number)
    code, output = finish(process, tmp_path, 60)
    assert output.count(f"stopped by {number.name} after step") == 1, output[-2000:]
    assert "ChildFailedError" not in output
    assert launcher is not ALONE or code == 0
    assert_saved_at_the_last_step(Path(endless.run))


def test_sigterm_to_the_launcher_alone_reaches_training(endless, tmp_path):
    process = start(endless, tmp_path, accelerate("single.yaml"))
    wait_until(lambda: has_steps(Path(endless.run), 3), process, tmp_path)
    training = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    finish(process, tmp_path, 60)
    assert training and not psutil.wait_procs(training, 60)[1]  # the launcher does not wait for it
    assert_saved_at_the_last_step(Path(endless.run))
