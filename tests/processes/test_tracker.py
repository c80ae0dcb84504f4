"""The tracker's process: it follows the metrics, and training does not notice when it fails or hangs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import Accuracy, Measured
from longmlm.artifacts.artifact import dump
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.settings.pretrain import Tracking
from longmlm.training import tracker
from tests.artifacts.test_metrics import at
from tests.support.training import with_recipe

pytestmark = pytest.mark.usefixtures("no_account")


def stand_in(monkeypatch, folder: Path, code: str) -> None:
    """Makes the tracker's process import this code as its wandb."""
    (folder / "stand-in").mkdir()
    (folder / "stand-in" / "wandb.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder / "stand-in"), prepend=os.pathsep)


WORKING = """
import time
import types

class Run:
    offline, dir, lines = False, ".", 0
    url = property(lambda self: f"https://example.org/{self.lines}")
    finish = define_metric = lambda *given, **named: None
    def log(self, line): self.lines += 1

def login(**_): return True
def setup():
    return types.SimpleNamespace(settings=types.SimpleNamespace(mode="online", base_url="https://example.org"))
def init(**_): return Run()
def teardown(): pass
Settings = Table = dict
Error = OSError
"""
FAULTS = {
    "import": "{}\n",
    "init": "def init(**_): {}\n",
    "log": "def fail(*_, **__): {}\nRun.log = fail\n",
    "finish": "def fail(*_, **__): {}\nRun.finish = fail\n",
}


@pytest.fixture
def run_folder(tmp_path) -> Path:
    """A run folder before the first line of metrics."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text('[tracking]\ntracker = "wandb"\nproject = "p"\n', encoding="utf-8")
    MetricsFile(folder).truncate(-1)
    return folder


def test_lines_are_followed_to_the_last(run_folder, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING)
    with tracker.tracked(run_folder, "wandb", None):
        for step in range(50):
            MetricsFile(run_folder).append(at(step))
    assert capfd.readouterr().out == "wandb: https://example.org/50\n"


def test_a_run_that_writes_nothing_more_shows_nothing_more(run_folder, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, "raise RuntimeError")
    MetricsFile(run_folder).append(at(3))
    with tracker.tracked(run_folder, "wandb", TrainState(step=3)):
        pass
    assert capfd.readouterr().out == ""
    with tracker.tracked(run_folder, "wandb", TrainState(step=2)):
        pass
    assert "wandb failed (RuntimeError" in capfd.readouterr().out


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_a_postponed_evaluation_is_shown(is_evaluated, run_folder, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING)
    resumed = TrainState(step=3, accuracy=40.0, evaluated_at_step=3 if is_evaluated else 0)
    accuracy = Accuracy(40.0, 1.0, 3.0, 9)
    with tracker.tracked(run_folder, "wandb", resumed):
        held_out = Measured(accuracy, (accuracy,), (), (9,), (4,))
        MetricsFile(run_folder).append(EvaluationMetrics(step=3, tokens=30, held_out=held_out))
        MetricsFile(run_folder).append(at(4))
    assert capfd.readouterr().out == f"wandb: https://example.org/{1 if is_evaluated else 2}\n"


@pytest.mark.parametrize("where", ["import", "log", "finish"])
def test_a_tracker_that_raises_is_noted_in_one_line(where, run_folder, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS[where].format("raise RuntimeError('no\\nservice')"))
    with tracker.tracked(run_folder, "wandb", None):
        MetricsFile(run_folder).append(at(1))
    assert capfd.readouterr().out.splitlines() == [
        "wandb failed (RuntimeError: no service); training is not affected, metrics.jsonl has every number"
    ]


@pytest.mark.parametrize("where", ["import", "log", "finish"])
def test_a_tracker_that_hangs_is_killed_and_noted_in_one_line(where, run_folder, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS[where].format("time.sleep(600)"))
    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 0.7)
    started = time.monotonic()
    with tracker.tracked(run_folder, "wandb", None):
        MetricsFile(run_folder).append(at(1))
    assert time.monotonic() - started < 10
    [noted] = capfd.readouterr().out.splitlines()
    assert noted.startswith("wandb failed (killed")


def test_an_error_of_training_passes_through(run_folder, tmp_path, monkeypatch):
    stand_in(monkeypatch, tmp_path, WORKING)
    with pytest.raises(TrainingError), tracker.tracked(run_folder, "wandb", None):
        raise TrainingError


@pytest.mark.parametrize("fault", ["raise RuntimeError('no service')", "time.sleep(600)"])
def test_training_continues_while_its_tracker_fails_or_hangs(fault, settings, train, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS["init"].format(fault))
    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 0.7)
    run = train(replace(with_recipe(settings, num_steps=2), tracking=Tracking(tracker="wandb")))
    assert len([line for line in capfd.readouterr().out.splitlines() if line.startswith("wandb failed (")]) == 1
    assert [line.step for line in MetricsFile(run).lines()] == [0, 1, 2, 2]


KILLED = """
import os, pathlib, signal, sys, time
from longmlm.artifacts.metrics import METRICS_FILE
from longmlm.training import tracker
run, note, line = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
tracker.PATIENCE_SECONDS = 1.0
with tracker.tracked(run, "wandb", None):
    (run / METRICS_FILE).write_text(line)
    while not note.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_tracker_of_a_killed_training_reports_failure_and_exits_even_if_it_hangs(run_folder, tmp_path, monkeypatch):
    note = tmp_path / "note"
    hang = f"""
import os
def log(self, line): open({str(note)!r}, "a").write(f"{{os.getpid()}} ")
def finish(self, exit_code): open({str(note)!r}, "a").write(f"{{exit_code}}"); time.sleep(600)
Run.log, Run.finish = log, finish
"""
    stand_in(monkeypatch, tmp_path, WORKING + hang)
    command = [sys.executable, "-c", KILLED, str(run_folder), str(note), json.dumps(dump(at(1))) + "\n"]
    killed = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    process = Path("/proc", note.read_text().split()[0])
    deadline = time.monotonic() + 30
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()
    assert note.read_text().split()[1] == "1"


def test_an_address_with_a_password_which_the_client_would_log_is_refused(run_folder, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_BASE_URL", "http://somebody:planted@127.0.0.1:9")
    with tracker.tracked(run_folder, "wandb", None):
        MetricsFile(run_folder).append(at(1))
    assert "wandb failed (ValueError: the W&B client would log the password" in capfd.readouterr().out
    files = [path.read_bytes() for path in run_folder.rglob("*") if path.is_file()]
    assert files and not any(b"planted" in content for content in files)
