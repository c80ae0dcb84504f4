"""Runs that Weights & Biases and TensorBoard show, with the real clients."""

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from longmlm.artifacts.metrics import MetricsFile
from longmlm.settings.pretrain import PretrainConfig, Tracking
from longmlm.training import tracker
from tests.artifacts.test_metrics import at
from tests.support.training import evaluation_lines, losses, train_until

pytestmark = pytest.mark.usefixtures("no_account")
BLOCK = 32768


def tracked_by(name: str, settings: PretrainConfig) -> PretrainConfig:
    return replace(settings, tracking=Tracking(tracker=name))


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
    """Returns the lines logged to W&B in one start of a run, without its own columns and the tables."""
    return [
        {key: value for key, value in line.items() if not key.startswith(("_", "predictions/"))}
        for line in whole_history(start)
    ]


def whole_history(start: list[Record]) -> list[dict]:
    lines = [one.history.item for one in start if one.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in line} for line in lines]


def expected(run: Path, after: int = -1) -> list[dict]:
    lines = [line for line in MetricsFile(run).lines() if line.step > after]
    return [{"step": line.step, **tracker.figures(line)} for line in lines]


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def curves_of_metrics(run: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in expected(run):
        for name, value in line.items():
            if name != "step":
                found.setdefault(name, []).append((line["step"], pytest.approx(value, rel=1e-6)))
    return found


@pytest.fixture
def refusing_service() -> Iterator[tuple[int, list[str]]]:
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


SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_plantedtokenplantedtoken",
    "DATABASE_PASSWORD": "planted-password",
    "HTTPS_PROXY": "http://somebody:planted-proxy@127.0.0.1:9",
}


@pytest.fixture
def planted(tmp_path, monkeypatch, refusing_service) -> list[str]:
    """The keys that a service is shown, which refuses all; there are secrets in environment, arguments and git."""
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    port, keys = refusing_service
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(sys, "argv", ["pretrain.py", "planted-argument"])
    repository = tmp_path / "repository"
    remote = "https://somebody:planted-remote@example.org/it.git"
    for command in (["init", "-q", str(repository)], ["-C", str(repository), "remote", "add", "origin", remote]):
        subprocess.run(["git", *command], check=True)
    monkeypatch.chdir(repository)
    return keys


def assert_without_secrets(run: Path, name: str, printed: str) -> None:
    """Asserts that secrets reached no file that the tracker wrote, and no terminal."""
    planted = [value.encode() for value in SECRETS.values()]
    planted += [b"planted-argument", b"planted-remote", b"planted-proxy"]
    files = [path for folder in (run, Path.home()) for path in folder.rglob("*") if path.is_file()]
    contents = {str(path): path.read_bytes() for path in files} | {"terminal": printed.encode()}
    assert any(b"held_out/block_0" in content for path, content in contents.items() if name in path)
    assert {path for path, content in contents.items() if any(secret in content for secret in planted)} == set()


def test_wandb_shows_a_run_that_crashed_as_one_with_settings_and_predictions_and_without_secrets(
    settings, train, planted, tmp_path, capfd
):
    settings, exit_before = tracked_by("wandb", settings), sys.exit
    train_until(settings, 6)
    run = train(settings)
    first, start = offline_runs(run)
    shown = history(first)
    assert [line["step"] for line in shown if "train/mlm_loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line for line in shown if line["step"] <= 4] == [line for line in expected(run) if line["step"] <= 4]
    assert history(start) == expected(run, after=4)
    assert {"train/mlm_loss", "train/learning_rate", "train/tokens_per_second", "train/mlm_accuracy"} <= shown[1].keys()
    assert {"held_out/accuracy", "held_out/block_0"} <= shown[0].keys()
    ids = {one.run.run_id for one_start in (first, start) for one in one_start if one.HasField("run")}
    assert ids == {json.loads((run / tracker.IDENTITY).read_text())["id"]}

    tables = [line["predictions/path"] for line in whole_history(start) if "predictions/path" in line]
    assert len(tables) == 2
    table = json.loads((run / f"wandb/latest-run/files/{tables[-1]}").read_text(encoding="utf-8"))
    last = evaluation_lines(run)[-1].examples
    assert table["columns"][:7] == ["row", "position", "before", "truth", "after", "guess 1", "percent 1"]
    assert [row[:6] for row in table["data"]] == [
        [str(mask.row_id), str(mask.position), mask.before, mask.truth, mask.after, mask.guesses[0][0]] for mask in last
    ]
    assert len(last) >= 1

    [about] = [one.run for one in start if one.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert config["recipe"]["learning_rate"] == settings.recipe.learning_rate
    assert about.project == "longmlm"
    metrics = [one.metric for one in start if one.HasField("metric")]
    assert {"*"} <= {one.glob_name for one in metrics} and {one.step_metric for one in metrics} >= {"step"}
    codes = [[one.exit.exit_code for one in one_start if one.HasField("exit")] for one_start in (first, start)]
    assert codes == [[1], [0]]
    printed = "".join(capfd.readouterr())
    assert "`wandb sync" in printed and planted
    assert sys.exit is exit_before
    plain = train(replace(settings, run=str(tmp_path / "plain"), tracking=Tracking()))
    assert losses(run) == losses(plain)
    assert_without_secrets(run, "wandb", printed)


def test_an_address_with_a_password_which_the_client_would_log_is_refused(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_BASE_URL", "http://somebody:planted@127.0.0.1:9")
    with tracker.tracked(tmp_path, Tracking(tracker="wandb"), "", None, lambda _: None) as show:
        show(at(1))
    wandb.teardown()
    assert "wandb failed (ValueError: the W&B client would log the password" in capfd.readouterr().out
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"planted" in content for content in files)


def test_tensorboard_shows_a_run_that_crashed_without_secrets_and_training_is_as_without_it(
    settings, train, planted, tmp_path, capfd
):
    train_until(tracked_by("tensorboard", settings), 6)
    assert len(curves(Path(settings.run))["train/mlm_loss"]) == 6
    run = train(tracked_by("tensorboard", settings))
    shown = curves(run)
    assert shown == curves_of_metrics(run)
    assert len(shown["train/mlm_loss"]) == 12 and len(shown["held_out/block_0"]) == 4

    texts = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    *_, last = texts.Tensors("predictions/text_summary")
    example = evaluation_lines(run)[-1].examples[0]
    words = " ".join(example.before.split()).replace("|", "&#124;")
    assert last.step == 12 and words and words in str(last.tensor_proto.string_val[0], "utf-8")

    printed = "".join(capfd.readouterr())
    assert "tensorboard: " in printed and not planted
    assert_without_secrets(run, "tensorboard", printed)
    plain = train(replace(settings, run=str(tmp_path / "plain")))
    assert losses(run) == losses(plain) and len(losses(run)) == 12
    measured = [[(line.held_out, line.examples) for line in evaluation_lines(folder)] for folder in (run, plain)]
    assert measured[0] == measured[1] and len(measured[0]) == 4
