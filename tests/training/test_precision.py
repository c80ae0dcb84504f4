"""A run computes in one precision from end to end, whichever machine goes on with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import CheckpointError
from longmlm.folders import MANIFEST, seal
from longmlm.training import checkpoint, precision
from longmlm.training.checkpoint import folder_of
from tests.training.test_run import assert_same_model, losses, stop_after


@pytest.fixture
def machine(monkeypatch):
    """Lets `auto` mean bf16 here, or fp32."""

    def is_one(has_bf16: bool) -> None:
        here = "bf16" if has_bf16 else "no"
        monkeypatch.setattr(precision, "resolved_precision", lambda asked: here if asked == "auto" else asked)

    return is_one


@pytest.fixture
def half(settings, train, monkeypatch):
    """Trains half of a run in the precision asked for, and returns its settings."""

    def begun(asked: str):
        config = asking(settings, asked)
        with monkeypatch.context() as patched:
            stop_after(patched, 6)
            with pytest.raises(SystemExit):
                train(config)
        return config

    return begun


def asking(settings, asked: str):
    return replace(settings, recipe=replace(settings.recipe, precision=asked))


def computed_in(run: Path, step: int = 12) -> str | None:
    return checkpoint.trained_precision(folder_of(run, step))


def forget_precision(folder: Path) -> None:
    """Makes the checkpoint one of the time when longmlm.json did not tell it."""
    about = json.loads((folder / "longmlm.json").read_text(encoding="utf-8"))
    del about["trained"]["precision"]
    (folder / "longmlm.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / MANIFEST).unlink()
    seal(folder.rename(folder.with_name("aside")), folder)


def test_a_run_begun_in_fp32_goes_on_in_it_where_auto_means_bf16_and_says_so(
    settings, train, half, machine, tmp_path, capsys
):
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    machine(has_bf16=False)
    config = half("auto")
    machine(has_bf16=True)
    capsys.readouterr()
    run = train(config)
    assert f"{run} was begun in fp32 and goes on in it, though this machine has bf16\n" in capsys.readouterr().out
    assert computed_in(run) == "no"
    assert_same_model(whole, run, 12)
    assert losses(whole) == losses(run)


def test_a_run_begun_in_bf16_is_refused_where_there_is_none_and_goes_on_where_there_is(train, half, machine, capsys):
    machine(has_bf16=True)
    config = half("auto")
    machine(has_bf16=False)
    saved = folder_of(Path(config.run), 4)
    said = f"was begun in bf16, .* go on where there is bf16, or .* start.checkpoint = '{saved}' and recipe.precision ="
    for is_dry in (True, False):
        with pytest.raises(CheckpointError, match=said):
            train(replace(config, dry_run=is_dry))
    machine(has_bf16=True)
    capsys.readouterr()
    assert computed_in(train(config)) == "bf16"
    assert "was begun in" not in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "again"), [("auto", "no"), ("no", "auto")])
def test_auto_and_the_precision_that_it_means_are_the_same_recipe(train, half, machine, asked, again):
    machine(has_bf16=False)
    config = half(asked)
    machine(has_bf16=again == "auto")
    assert computed_in(train(asking(config, again))) == "no"


def test_another_precision_than_auto_meant_is_another_recipe(train, half, machine):
    machine(has_bf16=False)
    config = half("auto")
    with pytest.raises(CheckpointError, match=r"recipe\.precision was no, is bf16"):
        train(asking(config, "bf16"))


def test_a_checkpoint_that_does_not_tell_its_precision_is_taken_by_its_word(train, half, machine):
    machine(has_bf16=False)
    config = half("auto")
    forget_precision(folder_of(Path(config.run), 4))
    with pytest.raises(CheckpointError, match=r"recipe\.precision was auto, is no"):
        train(asking(config, "no"))
    machine(has_bf16=True)
    assert computed_in(train(config)) == "bf16"
