"""What a tracker is shown of the metrics; training does not notice when it fails or hangs."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longmlm.artifacts.accuracy import Accuracy, FilledMask, Measured
from longmlm.artifacts.metrics import EvaluationMetrics, Metrics
from longmlm.errors import TrainingError
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.pretrain import Tracking
from longmlm.stages import pretrain
from longmlm.training import tracker
from tests.artifacts.test_metrics import at
from tests.support.training import losses

pytestmark = pytest.mark.usefixtures("no_account")


def test_numbers_have_the_names_of_the_curves_and_absent_ones_are_left_out():
    shown = tracker.figures(replace(at(3), gradient_norm=float("inf")))
    assert (shown["train/mlm_loss"], shown["train/tokens_per_second"]) == (2.5, 10.0)
    assert not {"train/mfu", "train/gradient_norm", "train/step", "train/format", "train/longmlm"} & shown.keys()
    accuracy = Accuracy(40.0, 1.0, 3.0, 9)
    held_out = Measured(accuracy, (accuracy, Accuracy(None, None, None, 0)), (), (9,), (4,))
    line = EvaluationMetrics(step=3, tokens=9, held_out=held_out, base_chunks=40.0, base_cut=41.0)
    assert tracker.figures(line) == {
        "held_out/accuracy": 40.0,
        "held_out/standard_error": 1.0,
        "held_out/loss": 3.0,
        "held_out/num_selected": 9.0,
        "held_out/base_chunks": 40.0,
        "held_out/base_cut": 41.0,
        "held_out/block_0": 40.0,
    }
    assert tracker.predictions(line) == []
    example = FilledMask(row_id=7, position=30, before="a ", after=" c", truth="b", guesses=(("b", 0.75), ("d", 0.25)))
    [row] = tracker.predictions(replace(line, examples=(example,)))
    assert list(row.values()) == ["7", "30", "a ", "b", " c", "b", 75.0, "d", 25.0]


def test_an_error_of_a_tracker_is_printed_without_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    redacted = tracker.redact("planted-key is false\nat https://me:planted@example.org/x" + 999 * ".")
    assert redacted.startswith("*** is false at https://example.org/x")
    assert len(redacted) == 300


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra_before_training(name, settings, train, monkeypatch):
    monkeypatch.setattr(tracker, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=rf"pip install 'longmlm\[{name}\]'"):
        train(replace(settings, tracking=Tracking(tracker=name)))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What takes the place of W&B's client; `lines` and `codes` are what its run was shown and how it ended.

    Its function `hang` never returns.
    """
    codes, lines = list[int](), list[dict]()
    run = SimpleNamespace(offline=False, dir=".", url="https://example.org/run", log=lines.append)
    run.finish, run.define_metric = lambda **named: codes.extend(named.values()), lambda *_, **__: None
    settings = SimpleNamespace(mode="online", base_url="https://example.org")
    client = SimpleNamespace(
        __spec__=SimpleNamespace(origin="."),
        Error=OSError,
        Settings=dict,
        Table=dict,
        run=run,
        lines=lines,
        codes=codes,
    )
    client.setup, client.teardown = lambda: SimpleNamespace(settings=settings), lambda: None
    client.init, client.login = lambda **_: run, lambda **_: True
    client.hang = lambda *_, **__: threading.Event().wait()
    monkeypatch.setitem(sys.modules, "wandb", client)
    return client


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("no\nservice")


def show_steps(run: Path, num_steps: int) -> list[Metrics | None]:
    """Shows lines of metrics in a tracker, and returns what was shown elsewhere."""
    shown: list[Metrics | None] = []
    with tracker.tracked(run, Tracking(tracker="wandb"), "[recipe]\n", None, shown.append) as show:
        for line in (None, *map(at, range(num_steps))):
            show(line)
    return shown


def test_lines_are_shown_to_the_last(client, tmp_path, capsys):
    assert show_steps(tmp_path, 50) == [None, *map(at, range(50))]
    assert [line["step"] for line in client.lines] == [*range(50)]
    assert client.codes == [0]
    assert capsys.readouterr().out == "wandb: https://example.org/run\n"


def test_an_error_of_training_passes_through_and_is_the_end_of_the_run(client, tmp_path):
    def stop(_line: Metrics | None) -> None:
        raise TrainingError

    tracking = Tracking(tracker="wandb")
    with tracker.tracked(tmp_path, tracking, "", None, lambda _: None) as show:
        show(at(1))
    with pytest.raises(TrainingError), tracker.tracked(tmp_path, tracking, "", None, lambda _: None) as show:
        stop(show(at(1)))
    assert client.codes == [0, 1]


def test_a_run_that_writes_nothing_more_starts_no_tracker(client, tmp_path, capsys):
    client.init = fail
    show_steps(tmp_path, 0)
    assert capsys.readouterr().out == ""


def break_at(client: SimpleNamespace, where: str, how: Callable[..., object]) -> None:
    setattr(client if where == "init" else client.run, where, how)


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_noted_in_one_line(where, client, tmp_path, capsys):
    break_at(client, where, fail)
    assert len(show_steps(tmp_path, 3)) == 4
    assert capsys.readouterr().out.splitlines() == [
        "wandb failed (RuntimeError: no service); training is not affected, metrics.jsonl has every number"
    ]


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_tracker_that_hangs_is_left_behind_and_noted_in_one_line(where, client, tmp_path, monkeypatch, capsys):
    break_at(client, where, client.hang)
    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 0.5)
    started = time.monotonic()
    assert len(show_steps(tmp_path, 3)) == 4
    assert time.monotonic() - started < 10
    [noted] = capsys.readouterr().out.splitlines()
    assert noted.startswith("wandb failed (not finished 0 s after training)")


@pytest.mark.parametrize("hangs", [False, True])
def test_training_is_the_same_while_its_tracker_fails_or_hangs(
    hangs, client, settings, train, uninterrupted, monkeypatch
):
    break_at(client, "init", client.hang if hangs else fail)
    monkeypatch.setattr(tracker, "PATIENCE_SECONDS", 0.5)
    assert losses(train(replace(settings, tracking=Tracking(tracker="wandb")))) == losses(uninterrupted)


def test_a_stop_signal_waits_for_the_tracker_of_a_run_that_is_trained(settings, train, uninterrupted, monkeypatch):
    @contextmanager
    def slow(run, tracking, settings, resumed_from, show):
        yield show
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(pretrain, "tracked", slow)
    with exit_on_signal("the same command resumes"):
        assert losses(train(settings)) == losses(uninterrupted)
