"""The run command as a user starts it: it stops at a signal, resumes, and names the stage that fails."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from longmlm.config import parse
from longmlm.needs import QUICKLY_READ_BYTES
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.stages.extend import extend
from longmlm.stages.prepare import prepare
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import finish, has_steps, longmlm, start_command, wait_until
from tests.support.tiny import tiny_project
from tests.support.training import training_lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose long model is finished."""
    tiny_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    extend(parse(ResolvedPipeline, ["mine.toml"]).extend)
    return tmp_path


@pytest.fixture
def folder_with_rows(folder: Path) -> Path:
    prepare(parse(ResolvedPipeline, ["mine.toml"]).prepare)
    return folder


@pytest.mark.parametrize(
    ("number", "num_workers", "launch"),
    [
        (signal.SIGTERM, 1, ()),
        pytest.param(signal.SIGINT, 0, (), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, ("--launch", "single"), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, ("--launch", "two-cpu-processes"), marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_passed_on_and_the_same_command_resumes(
    folder_with_rows: Path, number: signal.Signals, num_workers: int, launch: tuple[str, ...]
) -> None:
    options = ("--pretrain.runtime.num-loader-workers", str(num_workers), *launch)
    folder = folder_with_rows
    run = folder / "out" / "run"
    process = start_command(folder, "run", "mine.toml", *options)
    wait_until(lambda: has_steps(run, 3), process, folder)
    second = subprocess.run(
        [sys.executable, "-m", "longmlm", "run", "mine.toml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "out is being written by another process" in second.stderr
    process.send_signal(number)
    code, output = finish(process, folder, 60)
    last = training_lines(run)[-1].step
    assert code == 128 + number, output[-2000:]
    assert f"[3/5] pretrain: stopped by {number.name}: the same command resumes from there" in output.splitlines()
    assert newest_verified(run).folder == checkpoint_folder(run, last)
    process = start_command(folder, "run", "mine.toml", *options)
    wait_until(lambda: has_steps(run, last + 1), process, folder)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert children and not psutil.wait_procs(children, 60)[1]
    steps = [line.step for line in training_lines(run)]
    assert steps == list(range(1, len(steps) + 1))
    assert newest_verified(run).folder == checkpoint_folder(run, len(steps))


def test_a_failing_stage_is_named_and_keeps_its_exit_code(folder: Path) -> None:
    (folder / "text.jsonl").write_text("{}\n" + " " * QUICKLY_READ_BYTES)  # too large to be read before the stages
    code, lines = longmlm(folder, "run", "mine.toml")
    assert code == 2
    assert lines[0] == "page of the training: out/run/index.html"
    assert [line.split(",")[0] for line in lines[1:3]] == ["[1/5] extend: already done", "[2/5] prepare: started"]
    assert lines[-2].startswith("error: ")
    assert lines[-1] == "[2/5] prepare: failed (exit code 2): fix that, then the same command resumes from this stage"
