"""Following a run in training: each new best checkpoint is published, and a message says why a checkpoint is not."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Extension, ModelSource, Provenance, TrainingRecord
from longmlm.artifacts.run import CheckpointState, TrainState
from longmlm.errors import ReleaseError, UnavailableError
from longmlm.folders import new_folder
from longmlm.processes import hide_gpus
from longmlm.release.follow import follow
from longmlm.release.publishing import reason_not_to_publish
from longmlm.runtime.signals import exit_on_signal
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.run_folder import checkpoint_folder

EMPTY_FILES = ("config.json", "model.safetensors", "optimizer.pt", "rng-00000.pt", "settings.toml")
EXTENSION = Extension(
    base=ModelSource(name="base"), base_positions=8, num_positions=16, initialisation="tile", alpha=0.0, seed=0
)
MAX_POLLS = 20


def checkpoint(run: Path, step: int, accuracy: float, base_cut: float | None = 10.0) -> Path:
    """Writes a checkpoint whose model and optimizer are empty files."""
    state = TrainState(step=step, accuracy=accuracy, evaluated_at_step=step, base_cut=base_cut)
    recipe = PretrainRecipe(num_steps=100, batch_tokens=100, learning_rate=1e-4)
    trained = TrainingRecord(row_length=16, steps=step, tokens=step, accuracy=accuracy)
    folder = checkpoint_folder(run, step)
    with new_folder(folder) as partial:
        for name in EMPTY_FILES:
            (partial / name).touch()
        artifact.write(partial / Provenance.FILE, Provenance(extension=EXTENSION, trained=trained))
        artifact.write(partial / CheckpointState.FILE, CheckpointState(state=state, recipe=recipe, rows_sha256="0"))
    return folder


def finish(run: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        (run / name).write_text("{}\n")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in training, which is polled without a pause and at most MAX_POLLS times."""
    pauses = list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) <= MAX_POLLS, "the run is followed forever"

    monkeypatch.setattr("time.sleep", sleep)
    return tmp_path / "run"


def events(*acts: Callable[[], object]) -> tuple[list[Path], Callable[[Path], None]]:
    """Returns the published checkpoints, and a publisher that does one of the acts before it publishes."""
    published, left = list[Path](), list(acts)

    def publish(folder: Path) -> None:
        if left:
            left.pop(0)()
        published.append(folder)

    return published, publish


def fail(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def test_each_new_best_is_published_once_until_the_run_is_finished(run: Path) -> None:
    first = checkpoint(run, 1, 11.0)
    checkpoint(run, 2, 10.5)

    def train() -> None:
        checkpoint(run, 3, 12.0)
        finish(run)

    published, publish = events(train)
    follow(run, allow_unrecovered=False, publish_step=publish)
    assert published == [first, run / "checkpoints" / "step-00000003"]


def test_unavailable_hub_and_removed_checkpoint_are_waited_for(run: Path, capsys: pytest.CaptureFixture) -> None:
    best = checkpoint(run, 1, 12.0)

    def prune() -> None:
        shutil.rmtree(best)
        checkpoint(run, 2, 11.0)
        raise ReleaseError("its files are gone")

    published, publish = events(fail(UnavailableError("status 503")), prune, lambda: finish(run))
    follow(run, allow_unrecovered=False, publish_step=publish)
    assert [folder.name for folder in published] == ["step-00000002"]
    lines = capsys.readouterr().err.splitlines()
    assert ["step 1 " in line for line in lines] == [True, True]
    assert ["status 503" in lines[0], "its files are gone" in lines[1]] == [True, True]


def test_unavailable_hub_is_an_error_once_the_run_is_finished(run: Path) -> None:
    checkpoint(run, 1, 12.0)
    finish(run)
    with pytest.raises(UnavailableError, match="status 503"):
        follow(run, allow_unrecovered=False, publish_step=events(fail(UnavailableError("status 503")))[1])


def test_error_that_waiting_does_not_fix_is_raised(run: Path) -> None:
    checkpoint(run, 1, 12.0)
    with pytest.raises(ReleaseError, match="status 403"):
        follow(run, allow_unrecovered=False, publish_step=events(fail(ReleaseError("status 403")))[1])
    with pytest.raises(ReleaseError, match="nowhere"):
        follow(run / "nowhere", allow_unrecovered=False, publish_step=lambda _: None)


def test_checkpoint_with_unreadable_state_is_named_once(run: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint(run, 1, 12.0)
    for step, content in {2: '{"state"', 3: "{}"}.items():
        (checkpoint(run, step, 13.0) / "state.json").write_text(content)
    published, publish = events(fail(UnavailableError("no")), lambda: finish(run))
    follow(run, allow_unrecovered=False, publish_step=publish)
    assert [folder.name for folder in published] == ["step-00000001"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "state.json" in line]
    assert sorted(line.split()[1] for line in lines) == ["2", "3"]


def test_checkpoint_is_refused_unless_known_to_equal_its_base(run: Path) -> None:
    assert reason_not_to_publish(checkpoint(run, 1, 12.0), allow_unrecovered=False) is None
    worse = checkpoint(run, 2, 9.5)
    unmeasured = checkpoint(run, 3, 12.0, base_cut=None)
    assert "9.50 %" in (reason_not_to_publish(worse, allow_unrecovered=False) or "")
    assert "base model" in (reason_not_to_publish(unmeasured, allow_unrecovered=False) or "")
    assert (
        reason_not_to_publish(worse, allow_unrecovered=True)
        is reason_not_to_publish(unmeasured, allow_unrecovered=True)
        is None
    )
    (worse / "state.json").write_text("damaged")
    assert "state.json" in (reason_not_to_publish(worse, allow_unrecovered=True) or "")


def test_sigterm_leaves_no_scratch_folder(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with exit_on_signal(), tempfile.TemporaryDirectory(dir=tmp_path):
            assert list(tmp_path.iterdir())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        work()
    assert caught.value.code == 143
    assert not list(tmp_path.iterdir())
    assert "SIGTERM" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_gpus_are_hidden_unless_the_environment_chooses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
