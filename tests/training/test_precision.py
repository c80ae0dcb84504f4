"""A run computes in one precision from the first step to the last, whichever machine resumes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import CheckpointError
from longmlm.training import checkpoint
from longmlm.training.run_folder import checkpoint_folder, read_state
from tests.support.training import assert_same_model, losses, stop_after, with_recipe


@pytest.fixture
def machine(monkeypatch):
    """Makes `auto` mean bf16 on this machine, or fp32."""

    def set_up(has_bf16: bool) -> None:
        available = "bf16" if has_bf16 else "no"
        monkeypatch.setattr(checkpoint, "resolved_precision", lambda name: available if name == "auto" else name)

    return set_up


@pytest.fixture
def half(settings, train, monkeypatch):
    """Trains half of a run in a precision, and returns its settings."""

    def start(requested: str):
        config = with_recipe(settings, precision=requested)
        with monkeypatch.context() as patched:
            stop_after(patched, 6)
            with pytest.raises(SystemExit):
                train(config)
        return config

    return start


def precision_of(run: Path, step: int = 12) -> str | None:
    return read_state(checkpoint_folder(run, step)).precision


def test_a_run_started_in_fp32_continues_in_it_where_auto_means_bf16_and_says_so(
    settings, train, half, machine, tmp_path, capsys
):
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    machine(has_bf16=False)
    config = half("auto")
    machine(has_bf16=True)
    capsys.readouterr()
    run = train(config)
    assert f"{checkpoint_folder(run, 4)} was trained in fp32" in capsys.readouterr().out
    assert precision_of(run) == "no"
    assert_same_model(whole, run, 12)
    assert losses(whole) == losses(run)


def test_a_run_started_in_bf16_continues_where_there_is_some_and_is_refused_elsewhere(train, half, machine, capsys):
    machine(has_bf16=True)
    config = half("auto")
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
def test_auto_and_the_precision_that_it_means_are_the_same_recipe(train, half, machine, before, now):
    machine(has_bf16=False)
    config = half(before)
    machine(has_bf16=now == "auto")
    assert precision_of(train(with_recipe(config, precision=now))) == "no"


def test_another_precision_than_auto_meant_is_another_recipe(train, half, machine):
    machine(has_bf16=False)
    config = half("auto")
    with pytest.raises(CheckpointError, match=r"recipe\.precision was no, is bf16"):
        train(with_recipe(config, precision="bf16"))
