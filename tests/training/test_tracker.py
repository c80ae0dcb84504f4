"""The tracker's process: what it does with lines, and what becomes of training when it fails."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import TrainingError
from longmlm.settings.pretrain import Tracking
from longmlm.training import tracker, tracking

pytestmark = pytest.mark.usefixtures("stranger")


def stand_in(monkeypatch, folder: Path, code: str) -> None:
    """Lets the tracker's process find this code as its wandb."""
    (folder / "stand-in").mkdir()
    (folder / "stand-in" / "wandb.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder / "stand-in"))


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
def record(tmp_path) -> Path:
    """A run folder in which training is about to write its first line."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text('[tracking]\ntracker = "wandb"\nproject = "p"\n', encoding="utf-8")
    tracking.forget_after(folder, -1)
    return folder


def test_lines_are_followed_to_the_last(record, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING)
    with tracking.tracked(record, "wandb", -1):
        for step in range(50):
            tracking.append(record, {"step": step, "loss": 1.5})
    assert capfd.readouterr().out == "wandb: https://example.org/50\n"


def test_a_run_that_writes_nothing_more_shows_nothing_more(record, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, "raise RuntimeError")
    tracking.append(record, {"step": 3, "loss": 1.5})
    with tracking.tracked(record, "wandb", 3):
        pass
    assert capfd.readouterr().out == ""
    with tracking.tracked(record, "wandb", 2):
        pass
    assert "wandb failed (RuntimeError" in capfd.readouterr().out


@pytest.mark.parametrize("where", ["import", "init", "log", "finish"])
def test_a_tracker_that_raises_is_noted_in_one_line(where, record, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS[where].format("raise RuntimeError('no\\nservice')"))
    with tracking.tracked(record, "wandb", -1):
        tracking.append(record, {"step": 1, "loss": 1.5})
    assert capfd.readouterr().out.splitlines() == [
        "wandb failed (RuntimeError: no service); the run does without it, metrics.jsonl has every figure"
    ]


@pytest.mark.parametrize("where", ["import", "init", "log", "finish"])
def test_a_tracker_that_hangs_is_ended_and_noted_in_one_line(where, record, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS[where].format("time.sleep(600)"))
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.7)
    started = time.monotonic()
    with tracking.tracked(record, "wandb", -1):
        tracking.append(record, {"step": 1, "loss": 1.5})
    assert time.monotonic() - started < 10
    [noted] = capfd.readouterr().out.splitlines()
    assert noted.startswith("wandb failed (killed, or without an answer for")


def test_an_error_of_training_passes_through(record, tmp_path, monkeypatch):
    stand_in(monkeypatch, tmp_path, WORKING)
    with pytest.raises(TrainingError), tracking.tracked(record, "wandb", -1):
        raise TrainingError


@pytest.mark.parametrize("fault", ["raise RuntimeError('no service')", "time.sleep(600)"])
def test_training_goes_on_while_its_tracker_fails_or_hangs(fault, settings, train, tmp_path, monkeypatch, capfd):
    stand_in(monkeypatch, tmp_path, WORKING + FAULTS["init"].format(fault))
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.7)
    run = train(replace(settings, recipe=replace(settings.recipe, num_steps=2), tracking=Tracking(tracker="wandb")))
    assert len([line for line in capfd.readouterr().out.splitlines() if line.startswith("wandb failed (")]) == 1
    assert [line["step"] for line in tracking.read(run)] == [0, 1, 2, 2]


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra_before_training(name, settings, train, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=rf"pip install 'longmlm\[{name}\]'"):
        train(replace(settings, tracking=Tracking(tracker=name)))
    assert not Path(settings.run).exists()


KILLED = """
import os, pathlib, signal, sys, time
from longmlm.training import tracking
run, note = map(pathlib.Path, sys.argv[1:3])
tracking.PATIENCE_SECONDS = 1.0
with tracking.tracked(run, "wandb", -1):
    tracking.append(run, {"step": 1, "loss": 1.5})
    while not note.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_tracker_of_a_killed_training_tells_its_failure_and_ends_even_if_it_hangs(record, tmp_path, monkeypatch):
    note = tmp_path / "note"
    hang = f"""
import os
def log(self, line): open({str(note)!r}, "a").write(f"{{os.getpid()}} ")
def finish(self, exit_code): open({str(note)!r}, "a").write(f"{{exit_code}}"); time.sleep(600)
Run.log, Run.finish = log, finish
"""
    stand_in(monkeypatch, tmp_path, WORKING + hang)
    command = [sys.executable, "-c", KILLED, str(record), str(note)]
    killed = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    process = Path("/proc", note.read_text().split()[0])
    ends = time.monotonic() + 30
    while process.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not process.exists()
    assert note.read_text().split()[1] == "1"


def test_numbers_have_the_names_of_the_curves_and_what_is_none_is_left_out():
    learnt = {"step": 3, "loss": 1.5, "mfu": None, "memory_bytes": 7, "device": "cpu", "gradient_norm": float("inf")}
    assert tracker.figures(learnt) == {"train/loss": 1.5, "train/memory_bytes": 7.0}
    block = {"accuracy": 40.0, "standard_error": 1.0, "loss": 3.0, "num_selected": 9}
    empty = {"accuracy": float("nan"), "standard_error": float("nan"), "loss": float("nan"), "num_selected": 0}
    line = {"step": 3, "tokens": 9, "held_out": {"whole": block, "blocks": [block, empty]}, "base_cut": 41.0}
    assert tracker.figures({**line, "recovered_at_step": None}) == {
        "held_out/accuracy": 40.0,
        "held_out/standard_error": 1.0,
        "held_out/loss": 3.0,
        "held_out/num_selected": 9.0,
        "held_out/base_cut": 41.0,
        "held_out/block_0": 40.0,
    }


def test_an_address_with_a_password_which_the_client_would_log_is_refused(record, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_BASE_URL", "http://somebody:planted@127.0.0.1:9")
    with tracking.tracked(record, "wandb", -1):
        tracking.append(record, {"step": 1, "loss": 1.5})
    assert "wandb failed (ValueError: W&B's client would log the password" in capfd.readouterr().out
    files = [path.read_bytes() for path in record.rglob("*") if path.is_file()]
    assert files and not any(b"planted" in content for content in files)


def test_what_a_tracker_complains_of_is_told_without_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    told = tracker.redact("planted-key is false\nat https://me:planted@example.org/x" + 999 * ".")
    assert told.startswith("*** is false at https://example.org/x")
    assert len(told) == 300
