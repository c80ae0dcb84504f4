"""Stop signals to a launcher and its process group, and a launch that means something else."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from longmlm.settings.shipped import LAUNCHES
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import (
    ALONE,
    TWO_PROCESSES,
    accelerate,
    errors_in,
    finish,
    has_steps,
    run_to_end,
    start,
    wait_until,
)
from tests.support.training import training_lines, with_recipe, with_runtime

MODULE = ("-m", "longmlm.stages.pretrain")


@pytest.fixture
def endless(settings):
    """A run that saves only when it is stopped."""
    return with_runtime(with_recipe(settings, num_steps=100_000), save_every_steps=100_000, num_loader_workers=1)


def assert_saved_at_the_last_step(run: Path) -> None:
    last = training_lines(run)[-1].step
    assert newest_verified(run).folder == checkpoint_folder(run, last)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("launcher", [ALONE, TWO_PROCESSES])
def test_a_signal_to_the_whole_group_saves_also_with_loader_workers(endless, tmp_path, launcher, number):
    process = start(endless, tmp_path, launcher)
    wait_until(lambda: has_steps(Path(endless.run), 3), process, tmp_path)
    os.killpg(process.pid, number)
    code, output = finish(process, tmp_path, 60)
    assert output.count(f"stopped by {number.name} after step") == 1, output[-2000:]
    assert "ChildFailedError" not in output
    assert launcher is not ALONE or code == 0
    assert_saved_at_the_last_step(Path(endless.run))


def test_the_package_is_launched_as_a_module_and_sigterm_to_the_launcher_alone_reaches_training(endless, tmp_path):
    process = start(endless, tmp_path, accelerate("single.yaml"), *MODULE)
    wait_until(lambda: has_steps(Path(endless.run), 3), process, tmp_path)
    training = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    finish(process, tmp_path, 60)
    assert training and not psutil.wait_procs(training, 60)[1]  # the launcher does not wait for it
    assert_saved_at_the_last_step(Path(endless.run))


def test_a_launch_with_settings_that_a_run_ignores_is_refused_in_one_line(settings, tmp_path):
    file = tmp_path / "fsdp.yaml"
    file.write_text("distributed_type: FSDP\nnum_processes: 1\nmain_process_port: 0\nfsdp_config: {fsdp_version: 2}\n")
    code, output = run_to_end(settings, tmp_path, accelerate(file))
    [error] = errors_in(output)
    assert code != 0
    assert error.startswith("error: ACCELERATE_USE_FSDP = true (set by accelerate launch, or in the environment)")
    assert f" is not supported: use {LAUNCHES}/zero-3.yaml" in error
    assert not Path(settings.run).exists()
