import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.config import to_toml
from longmlm.errors import FolderError
from longmlm.processes import exclusive_lock
from longmlm.training import checkpoint, tracking
from tests.training.test_faults import ACCELERATE

ROOT = Path(__file__).parents[2]


def started(settings, folder: Path, command: list[str]) -> subprocess.Popen:
    """Starts a long run in a process group of its own, and waits until it has made some steps."""
    file = folder / "settings.toml"
    long = replace(settings, recipe=replace(settings.recipe, num_steps=100_000))
    file.write_text(to_toml(long), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, *command, str(ROOT / "pretrain.py"), str(file)],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for _ in range(600):
        if sum("loss" in line for line in tracking.read(Path(settings.run))) > 2:
            return process
        assert process.poll() is None, process.communicate()[0][-2000:]
        time.sleep(0.2)
    raise AssertionError("the run made no step")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_saves_also_with_loader_workers(settings, tmp_path, number):
    runtime = replace(settings.runtime, num_loader_workers=1, save_every_steps=100_000)
    process = started(replace(settings, runtime=runtime), tmp_path, [])
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said[-2000:]
    assert f"stopped by {number.name} after step" in said
    assert_saved_at_the_last_step(Path(settings.run))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_of_two_processes_saves_and_no_process_fails(settings, tmp_path, number):
    settings = replace(settings, runtime=replace(settings.runtime, save_every_steps=100_000))
    process = started(settings, tmp_path, list(ACCELERATE[1:]))
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert said.count(f"stopped by {number.name} after step") == 1, said[-2000:]
    assert "ChildFailedError" not in said
    assert_saved_at_the_last_step(Path(settings.run))


def assert_saved_at_the_last_step(run: Path) -> None:
    last = max(line["step"] for line in tracking.read(run) if "loss" in line)
    assert checkpoint.newest_verified(run).folder == checkpoint.folder_of(run, last)


def test_sigterm_to_the_launcher_alone_reaches_training(settings, tmp_path):
    runtime = replace(settings.runtime, save_every_steps=100_000)
    yaml = str(ROOT / "configs" / "accelerate" / "single.yaml")
    command = ["-m", "accelerate.commands.launch", "--config_file", yaml]
    process = started(replace(settings, runtime=runtime), tmp_path, command)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "stopped by SIGTERM after step" in said
    assert checkpoint.newest_verified(Path(settings.run)).folder is not None


def test_a_second_launch_on_one_run_folder_is_refused(settings, train):
    with exclusive_lock(Path(settings.run)), pytest.raises(FolderError, match="being written by another process"):
        train(settings)
    assert tracking.read(Path(settings.run)) == []
    assert train(settings).is_dir()


def test_pruning_never_removes_the_checkpoint_just_saved_for_damaged_ones_after_it(settings, train):
    run = train(settings)
    for step in (4, 8, 12):
        assert checkpoint.folder_of(run, step).exists() is (step != 4)
    (checkpoint.folder_of(run, 12) / "optimizer.pt").write_bytes(b"damaged")
    for step in (15, 20):
        checkpoint.folder_of(run, 12).with_name(f"step-{step:08d}").mkdir()
    saved = checkpoint.folder_of(run, 8)
    assert saved not in checkpoint.prune(run, saved, 2)
    assert checkpoint.newest_verified(run).folder == saved
