"""A run computes in one precision from the first step to the last, whichever machine resumes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import CheckpointError
from longmlm.training.run_folder import checkpoint_folder, read_state
from tests.support import precision
from tests.support.training import assert_same_model, losses, train_until, with_recipe


@pytest.fixture
def machine(monkeypatch):
    """Makes `auto` mean bf16 on this machine, or fp32."""

    def set_up(has_bf16: bool) -> None:
        monkeypatch.setenv(precision.VARIABLE, "1" if has_bf16 else "0")

    return set_up


def precision_of(run: Path, step: int = 12) -> str | None:
    return read_state(checkpoint_folder(run, step)).precision


def test_a_run_started_in_fp32_continues_in_it_where_auto_means_bf16_and_says_so(
    settings, uninterrupted, train, machine, capsys
):
    machine(has_bf16=False)
    config = train_until(with_recipe(settings, precision="auto"), 6)
    machine(has_bf16=True)
    capsys.readouterr()
    run = train(config)
    assert f"{checkpoint_folder(run, 4)} was trained in fp32" in capsys.readouterr().out
    assert precision_of(run) == "no"
    assert_same_model(uninterrupted, run, 12)
    assert losses(uninterrupted) == losses(run)


def test_a_run_started_in_bf16_continues_where_there_is_some_and_is_refused_elsewhere(settings, train, machine, capsys):
    machine(has_bf16=True)
    config = train_until(with_recipe(settings, precision="auto"), 6)
    machine(has_bf16=False)
    saved = checkpoint_folder(Path(config.run), 4)
    for is_dry in (True, False):
        with pytest.raises(CheckpointError, match=f"bf16.* start.checkpoint = '{saved}' and recipe.precision ="):
            train(replace(config, dry_run=is_dry))
    machine(has_bf16=True)
    capsys.readouterr()
    assert precision_of(train(config)) == "bf16"
    assert "was trained in" not in capsys.readouterr().out


@pytest.mark.parametrize(("before", "now"), [("auto", "no"), ("no", "auto")])
def test_auto_and_the_precision_that_it_means_are_the_same_recipe(settings, train, machine, before, now):
    machine(has_bf16=False)
    config = train_until(with_recipe(settings, precision=before), 6)
    machine(has_bf16=now == "auto")
    assert precision_of(train(with_recipe(config, precision=now))) == "no"


def test_another_precision_than_auto_meant_is_another_recipe(settings, train, machine):
    machine(has_bf16=False)
    config = train_until(with_recipe(settings, precision="auto"), 6)
    with pytest.raises(CheckpointError, match=r"recipe\.precision was no, is bf16"):
        train(with_recipe(config, precision="bf16"))
