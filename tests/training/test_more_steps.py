"""Steps that are added to a finished run: new rows and masks, the optimizer kept, and resumed like any others."""

import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from longmlm.artifacts.run import CheckpointState, Continuation, TrainState
from longmlm.errors import CheckpointError
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe
from longmlm.training.optimizer import learning_rate
from longmlm.training.run_folder import list_checkpoints, read_state
from tests.support.training import (
    Drawn,
    Train,
    assert_same_model,
    evaluation_lines,
    losses,
    moments_at,
    signal_at,
    state_at,
    train_until,
    training_lines,
    with_recipe,
    with_runtime,
)


def added(settings: PretrainConfig, num_steps: int = 6) -> PretrainConfig:
    return replace(settings, more_steps=num_steps)


def saved_steps(run: Path) -> list[int]:
    return [read_state(folder).state.step for folder in list_checkpoints(run)]


def test_a_finished_run_goes_on_at_its_cursor_with_its_optimizer(
    settings: PretrainConfig, uninterrupted: Path, train: Train, drawn: Drawn, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(settings)
    seen = {*drawn}
    drawn.clear()
    cursor = state_at(run, 12).cursor
    assert len(seen) == cursor
    train(added(settings))
    assert "the run has 6 added steps, and will end at step 18" in capsys.readouterr().out
    assert len(drawn) == cursor // 2 and seen.isdisjoint(drawn)
    saved = read_state(list_checkpoints(run)[-1])
    assert (saved.state.step, saved.num_steps, saved.recipe) == (18, 18, settings.recipe)
    assert saved.continuations == (Continuation(from_step=12, num_steps=6),)
    assert saved.state.cursor == cursor + cursor // 2
    assert [line.step for line in training_lines(run)] == list(range(1, 19))
    assert losses(run)[:12] == losses(uninterrupted)
    assert [line.step for line in evaluation_lines(run)] == [0, 4, 8, 12, 16, 18]
    assert all(moment.abs().sum() > 0 for moment in moments_at(run, 18, "exp_avg_sq")[:4])
    rates = [line.learning_rate for line in training_lines(run)]
    assert rates[12] > rates[11] and rates[-1] < rates[12]


def test_interrupted_steps_are_resumed_by_the_same_command_and_without_the_option(
    settings: PretrainConfig, finished: Path, train: Train, tmp_path: Path
) -> None:
    runs = [replace(settings, run=str(tmp_path / name)) for name in ("whole", "same", "without")]
    for one in runs:
        shutil.copytree(finished, one.run)
    whole, same, without = runs
    train(added(whole))
    for interrupted, resumed in ((same, added(same)), (without, without)):
        train_until(added(interrupted), 17)
        assert saved_steps(Path(interrupted.run))[-1] == 16
        assert_same_model(Path(whole.run), train(resumed), 18)
        assert losses(Path(whole.run)) == losses(Path(interrupted.run))
    assert saved_steps(train(without))[-1] == 18


def test_a_second_continuation_follows_the_first(settings: PretrainConfig, finished: Path, train: Train) -> None:
    cursor = state_at(finished, 12).cursor
    train(added(settings))
    train(added(settings, 4))
    saved = read_state(list_checkpoints(finished)[-1])
    expected = (Continuation(from_step=12, num_steps=6), Continuation(from_step=18, num_steps=4))
    assert (saved.state.step, saved.continuations) == (22, expected)
    assert saved.state.cursor == 22 * cursor // 12


def test_a_run_that_has_not_finished_is_refused(half_trained: PretrainConfig, train: Train) -> None:
    with pytest.raises(CheckpointError, match=r"finished run, but \S+/run: it has made 4 of 12 steps: run the same"):
        train(added(half_trained))
    run = Path(half_trained.run)
    train(half_trained)
    train_until(added(half_trained), 17)
    with pytest.raises(CheckpointError, match=r"it has made 16 of 18 steps, of which 6 were added: run the same"):
        train(added(half_trained, 5))
    assert saved_steps(run)[-1] == 16


def test_a_run_without_a_checkpoint_is_refused(settings: PretrainConfig, train: Train) -> None:
    with pytest.raises(CheckpointError, match=r"--more-steps continues a finished run, but \S+/run has no checkpoint"):
        train(added(settings))
    assert not Path(settings.run).exists()


def test_a_finished_state_is_kept_until_the_new_one_is_whole(
    settings: PretrainConfig, finished: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = with_runtime(settings, save_every_steps=1)
    best = read_state(list_checkpoints(finished)[-1]).state.best_at_step
    with monkeypatch.context() as patched:
        signal_at(16, patched)
        train(added(often))
    assert {best, 12} <= {*saved_steps(finished)} and saved_steps(finished)[-2:] == [16, 17]
    train(often)
    kept = saved_steps(finished)
    assert kept[-2:] == [17, 18] and len(kept) <= 3


def test_a_stop_signal_before_the_first_added_step_adds_none(
    settings: PretrainConfig, finished: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        signal_at(12, patched)
        train(added(settings))
    assert saved_steps(finished)[-1] == 13
    train(settings)
    assert saved_steps(finished)[-1] == 18


def recipe(**more: object) -> PretrainRecipe:
    return PretrainRecipe(**{"num_steps": 60, "batch_tokens": 1, "learning_rate": 1.0, "warmup_steps": 6, **more})


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_of_added_steps_begins_high_and_decays_to_zero(schedule: str) -> None:
    continuations = (Continuation(from_step=60, num_steps=30), Continuation(from_step=90, num_steps=1))
    rates = [learning_rate(step, recipe(schedule=schedule), continuations) for step in range(91)]
    assert rates[:60] == [learning_rate(step, recipe(schedule=schedule)) for step in range(60)]
    assert rates[59] < 0.1 and rates[60] > 0.5
    assert all(later <= earlier for earlier, later in pairwise(rates[60 + 3 : 90]))
    assert 0 < rates[89] < 0.1 and 0 < rates[90] <= 1


def test_a_constant_rate_comes_before_a_decay_that_is_as_long_as_before() -> None:
    own = recipe(schedule="constant-then-decay", decay_steps=10)
    rates = [learning_rate(step, own, (Continuation(from_step=60, num_steps=30),)) for step in range(60, 90)]
    assert rates[:21] == [1.0] * 21 and rates[21:] == pytest.approx([1 - 0.1 * step for step in range(1, 10)])


def state(step: int, recovered_at: int | None = None, evaluated_at: int | None = None) -> TrainState:
    return TrainState(step=step, recovered_at_step=recovered_at, evaluated_at_step=evaluated_at)


@pytest.mark.parametrize(
    ("reached", "continuations", "is_finished"),
    [
        (state(60, evaluated_at=60), (), True),
        (state(60), (), False),
        (state(40, recovered_at=30, evaluated_at=40), (), True),
        (state(45, recovered_at=30, evaluated_at=45), ((40, 10),), False),
        (state(50, recovered_at=40, evaluated_at=50), ((40, 10),), True),
        (state(55, recovered_at=40, evaluated_at=55), ((50, 10),), False),
        (state(55, recovered_at=50, evaluated_at=55), ((50, 10),), True),
        (state(70, recovered_at=65, evaluated_at=70), ((60, 30),), True),
        (state(70, evaluated_at=70), ((60, 30),), False),
    ],
)
def test_a_run_that_stops_when_recovered_stops_in_added_steps_only_if_it_recovers_there(
    reached: TrainState, continuations: tuple[tuple[int, int], ...], is_finished: bool
) -> None:
    added = tuple(Continuation(from_step=start, num_steps=number) for start, number in continuations)
    saved = CheckpointState(state=reached, recipe=recipe(), rows_sha256="", continuations=added)
    assert saved.is_finished(stop_when_recovered=True) == is_finished
    if is_finished:
        assert saved.with_added_steps(7, True)[-1] == Continuation(from_step=reached.step, num_steps=7)
    assert math.isfinite(learning_rate(reached.step - 1, recipe(), added))


def test_more_steps_of_other_settings_are_refused(settings: PretrainConfig, finished: Path, train: Train) -> None:
    with pytest.raises(CheckpointError, match=r"started with different settings: recipe\.seed was 8, is 9"):
        train(added(with_recipe(settings, seed=9)))
    assert saved_steps(finished)[-1] == 12
