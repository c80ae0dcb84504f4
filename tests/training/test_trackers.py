"""Runs that Weights & Biases and TensorBoard show, with the real clients."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from longmlm.errors import TrainingError
from longmlm.training import loop, tracker, tracking
from longmlm.training.config import PretrainConfig, Tracking

BLOCK = 32768


@pytest.fixture(autouse=True)
def stranger(monkeypatch, tmp_path) -> None:
    """Nobody is logged in at W&B, what a client leaves at home lies below tmp_path, and a busy machine may be slow."""
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 120.0)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def tracked_by(name: str, settings: PretrainConfig) -> PretrainConfig:
    return replace(settings, tracking=Tracking(tracker=name))


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


def records(path: Path) -> Iterator[Record]:
    """Yields what an offline file of W&B holds: LevelDB's log format behind seven bytes."""
    content, at, whole = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        at += 7
        whole += content[at : at + length]
        at += length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def offline_runs(run: Path) -> list[list[Record]]:
    """Returns the records of each start of the run, in their order."""
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [list(records(path)) for path in files]


def history(start: list[Record]) -> list[dict]:
    """Returns the lines that W&B was given in one start of a run, without its own columns and the tables."""
    return [
        {key: value for key, value in line.items() if not key.startswith(("_", "predictions/"))}
        for line in whole_history(start)
    ]


def whole_history(start: list[Record]) -> list[dict]:
    lines = [one.history.item for one in start if one.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in line} for line in lines]


def expected(run: Path, after: int = -1) -> list[dict]:
    lines = [line for line in tracking.read(run) if line["step"] > after]
    return [{"step": line["step"], **tracker.figures(line)} for line in lines]


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def curves_of_record(run: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in expected(run):
        for name, value in line.items():
            if name != "step":
                found.setdefault(name, []).append((line["step"], pytest.approx(value, rel=1e-6)))
    return found


def die_after(monkeypatch, step: int) -> None:
    update = loop.one_update

    def dying(run, batches, state):
        if state.step == step:
            raise SystemExit
        return update(run, batches, state)

    monkeypatch.setattr(loop, "one_update", dying)


def test_wandb_shows_every_figure_of_the_record_the_settings_and_predictions(settings, train, capfd):
    run = train(tracked_by("wandb", settings))
    [start] = offline_runs(run)
    shown = history(start)
    tables = [line["predictions/path"] for line in whole_history(start) if "predictions/path" in line]
    assert shown == expected(run)
    assert {"train/loss", "train/learning_rate", "train/tokens_per_second", "train/accuracy"} <= shown[1].keys()
    assert {"held_out/accuracy", "held_out/block_0"} <= shown[0].keys()
    assert [line["step"] for line in shown if "train/loss" in line] == list(range(1, 13))

    assert len(tables) == 4
    table = json.loads((run / f"wandb/latest-run/files/{tables[-1]}").read_text(encoding="utf-8"))
    last = [line for line in tracking.read(run) if "examples" in line][-1]["examples"]
    assert table["columns"][:7] == ["row", "place", "before", "truth", "after", "guess 1", "percent 1"]
    assert [row[:6] for row in table["data"]] == [
        [str(one["row_id"]), str(one["place"]), one["before"], one["truth"], one["after"], one["guesses"][0][0]]
        for one in last
    ]
    assert len(last) >= 1

    [about] = [one.run for one in start if one.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert config["recipe"]["learning_rate"] == settings.recipe.learning_rate
    assert about.project == "longmlm"
    metrics = [one.metric for one in start if one.HasField("metric")]
    assert {"*"} <= {one.glob_name for one in metrics} and {one.step_metric for one in metrics} >= {"step"}
    assert [one.exit.exit_code for one in start if one.HasField("exit")] == [0]
    assert "`wandb sync" in capfd.readouterr().out


def test_a_run_keeps_its_id_and_counts_on_after_a_crash(settings, train, monkeypatch):
    settings = tracked_by("wandb", settings)
    with monkeypatch.context() as patched:
        die_after(patched, 6)
        with pytest.raises(SystemExit):
            train(settings)
    run = train(settings)
    first, second = offline_runs(run)
    assert [line["step"] for line in history(first) if "train/loss" in line] == [1, 2, 3, 4, 5, 6]
    assert history(second) == expected(run, after=4)
    ids = {one.run.run_id for start in (first, second) for one in start if one.HasField("run")}
    assert ids == {json.loads((run / tracker.IDENTITY).read_text())["id"]}
    assert [[one.exit.exit_code for one in start if one.HasField("exit")] for start in (first, second)] == [[1], [0]]


def test_tensorboard_shows_the_record_after_a_crash_and_training_is_as_without_it(
    settings, train, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        die_after(patched, 6)
        with pytest.raises(SystemExit):
            train(tracked_by("tensorboard", settings))
    assert len(curves(Path(settings.run))["train/loss"]) == 6
    run = train(tracked_by("tensorboard", settings))
    shown = curves(run)
    assert shown == curves_of_record(run)
    assert len(shown["train/loss"]) == 12 and len(shown["held_out/block_0"]) == 4

    texts = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    *_, last = texts.Tensors("predictions/text_summary")
    example = [line for line in tracking.read(run) if "examples" in line][-1]["examples"][0]
    words = " ".join(example["before"].split()).replace("|", "&#124;")
    assert last.step == 12 and words and words in str(last.tensor_proto.string_val[0], "utf-8")

    plain = train(replace(settings, run=str(tmp_path / "plain")))
    learnt = [[line.get("loss", line.get("held_out")) for line in tracking.read(one)] for one in (run, plain)]
    assert learnt[0] == learnt[1] and len(learnt[0]) == 16
    assert not any("examples" in line for line in tracking.read(plain))


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
    run = train(tracked_by("wandb", replace(settings, recipe=replace(settings.recipe, num_steps=2))))
    assert len([line for line in capfd.readouterr().out.splitlines() if line.startswith("wandb failed (")]) == 1
    assert [line["step"] for line in tracking.read(run)] == [0, 1, 2, 2]


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra_before_training(name, settings, train, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=rf"pip install 'longmlm\[{name}\]'"):
        train(tracked_by(name, settings))
    assert not Path(settings.run).exists()


@pytest.fixture
def asked() -> Iterator[tuple[int, list[str]]]:
    """A service at a port of this machine that refuses every key, and the keys that it was shown."""
    keys = []

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, keys
        server.shutdown()


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_planted_secrets_reach_neither_a_file_nor_the_terminal(name, settings, train, tmp_path, asked, request):
    monkeypatch, capfd = request.getfixturevalue("monkeypatch"), request.getfixturevalue("capfd")
    port, keys = asked
    secrets = {
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
        "HF_TOKEN": "hf_plantedtokenplantedtoken",
        "DATABASE_PASSWORD": "planted-password",
        "HTTPS_PROXY": "http://somebody:planted-proxy@127.0.0.1:9",
    }
    for variable, value in secrets.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(sys, "argv", ["pretrain.py", "planted-argument"])
    repository = tmp_path / "repository"
    remote = "https://somebody:planted-remote@example.org/it.git"
    for command in (["init", "-q", str(repository)], ["-C", str(repository), "remote", "add", "origin", remote]):
        subprocess.run(["git", *command], check=True)
    monkeypatch.chdir(repository)
    run = train(tracked_by(name, replace(settings, recipe=replace(settings.recipe, num_steps=2))))

    planted = [value.encode() for value in secrets.values()]
    planted += [b"planted-argument", b"planted-remote", b"planted-proxy"]
    out, err = capfd.readouterr()
    assert bool(keys) == (name == "wandb")
    files = [path for folder in (run, tmp_path / "home") for path in folder.rglob("*") if path.is_file()]
    contents = {str(path): path.read_bytes() for path in files} | {"terminal": (out + err).encode()}
    assert any(b"held_out/block_0" in content for path, content in contents.items() if name in path)
    assert f"{name}: " in out
    assert {path for path, content in contents.items() if any(secret in content for secret in planted)} == set()


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
    told = tracker.blotted("planted-key is false\nat https://me:planted@example.org/x" + 999 * ".")
    assert told.startswith("*** is false at https://example.org/x")
    assert len(told) == 300
