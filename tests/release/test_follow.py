"""A run in training to what is published of it: each new best, and a line for what is not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm.errors import ReleaseError, UnavailableError
from longmlm.folders import new_folder
from longmlm.processes import exit_on_sigterm, hide_gpus
from longmlm.release import follow as following
from longmlm.release.candidates import refusal
from longmlm.release.follow import follow
from tests.support.checkpoints import DEPENDS_ON


def checkpoint(run: Path, step: int, accuracy: float, base_cut: float | None = 10.0) -> Path:
    """Writes as much of a checkpoint as a follower reads."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    state = {"step": step, "accuracy": accuracy, "evaluated_at_step": step, "base_cut": base_cut}
    with new_folder(folder) as partial:
        (partial / "longmlm.json").write_text(json.dumps({"base": "base", "trained": {"accuracy": accuracy}}))
        (partial / "state.json").write_text(json.dumps({"state": state, "depends_on": DEPENDS_ON}))
    return folder


def end(run: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        (run / name).write_text("{}\n")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in training, of which a follower need not wait."""
    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    return tmp_path / "run"


def events(*told: Callable[[], object]) -> tuple[list[Path], Callable[[Path], None]]:
    """Returns what was published, and a publisher that does one of these after another and then publishes."""
    published, left = list[Path](), list(told)

    def publish(folder: Path) -> None:
        if left:
            left.pop(0)()
        published.append(folder)

    return published, publish


def fail(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def test_each_new_best_is_published_once_until_the_run_ends(run: Path) -> None:
    first = checkpoint(run, 1, 11.0)
    checkpoint(run, 2, 10.5)

    def go_on() -> None:
        checkpoint(run, 3, 12.0)
        end(run)

    published, publish = events(go_on)
    follow(run, is_allowed=False, publish_step=publish)
    assert published == [first, run / "checkpoints" / "step-00000003"]


def test_hub_that_fails_and_checkpoint_that_went_are_waited_for(run: Path, capsys: pytest.CaptureFixture) -> None:
    best = checkpoint(run, 1, 12.0)

    def prune() -> None:
        shutil.rmtree(best)
        checkpoint(run, 2, 11.0)
        raise ReleaseError("its files are gone")

    published, publish = events(fail(UnavailableError("the hub answers 503")), prune, lambda: end(run))
    follow(run, is_allowed=False, publish_step=publish)
    assert [folder.name for folder in published] == ["step-00000002"]
    assert capsys.readouterr().err.splitlines() == [
        "step 1 is not published yet: the hub answers 503",
        "step 1 is not published yet: its files are gone",
    ]


def test_what_waiting_does_not_mend_ends_it(run: Path) -> None:
    checkpoint(run, 1, 12.0)
    with pytest.raises(ReleaseError, match="the hub answers 403"):
        follow(run, is_allowed=False, publish_step=events(fail(ReleaseError("the hub answers 403")))[1])
    with pytest.raises(ReleaseError, match="no such run folder"):
        follow(run / "nowhere", is_allowed=False, publish_step=lambda _: None)


def test_checkpoint_whose_state_cannot_be_read_is_named_once(run: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint(run, 1, 12.0)
    for step, content in {2: '{"state"', 3: "{}"}.items():
        (checkpoint(run, step, 13.0) / "state.json").write_text(content)
    published, publish = events(fail(UnavailableError("no")), lambda: end(run))
    follow(run, is_allowed=False, publish_step=publish)
    assert [folder.name for folder in published] == ["step-00000001"]
    told = capsys.readouterr().err
    for step in (2, 3):
        assert told.count(f"step {step} is passed over: its state.json cannot be read") == 1


def test_long_checkpoint_whose_base_was_not_measured_is_published_only_where_allowed(run: Path) -> None:
    folder = checkpoint(run, 1, 12.0, base_cut=None)
    assert "did not measure the base model" in (refusal(folder, is_allowed=False) or "")
    assert refusal(folder, is_allowed=True) is None
    assert refusal(checkpoint(run, 2, 12.0), is_allowed=False) is None


def test_sigterm_leaves_no_scratch_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with exit_on_sigterm(), tempfile.TemporaryDirectory(dir=tmp_path):
            assert list(tmp_path.iterdir())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        work()
    assert caught.value.code == 143
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err == "stopped by SIGTERM: the same command goes on\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_gpus_are_left_to_training_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_follower_leaves_gpus_before_torch_can_find_them(tmp_path: Path) -> None:
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.stderr.write(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
            os._exit(0)
sys.meta_path.insert(0, Watch())
from longmlm.cli import main
main()
"""
    settings = tmp_path / "release.toml"
    settings.write_text(
        'model = "run"\nrows = "rows"\noutput = "out"\ntitle = "t"\npublish = "folder:x"\nfollow = "run"\n'
    )
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(settings)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == "''"
