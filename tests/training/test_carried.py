"""A run that starts from a model with a pooler and modules: they change nothing, and are in every checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longmlm.settings.pretrain import PretrainConfig
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.carrying import assert_carries_all, base_model, start_from
from tests.support.extras import extra_weights, with_heads, with_modules
from tests.support.training import losses


def test_run_with_extras_trains_the_same_and_keeps_them_when_it_resumes(
    settings: PretrainConfig, train: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = base_model(settings, tmp_path / "bare")
    extended = with_modules(with_heads(base_model(settings, tmp_path / "extended"), "roberta"))
    without = train(start_from(settings, bare, tmp_path / "without"))
    capsys.readouterr()
    run = train(start_from(settings, extended, tmp_path / "with"))
    assert "carried over untrained: pooler\n" in capsys.readouterr().out
    assert losses(run) == losses(without)
    assert len(losses(run)) == 4
    plain, carrying = (load_file(checkpoint_folder(one, 4) / "model.safetensors") for one in (without, run))
    assert carrying.keys() - plain.keys() == extra_weights("roberta").keys()
    assert all(torch.equal(carrying[name], value) for name, value in plain.items())
    for step in (2, 4):
        assert_carries_all(checkpoint_folder(run, step))
    checkpoint_folder(run, 4).rename(tmp_path / "last")
    train(start_from(settings, extended, run))
    assert "carried over untrained: pooler\n" in capsys.readouterr().out
    assert newest_verified(run).folder == checkpoint_folder(run, 4)
    assert_carries_all(checkpoint_folder(run, 4))
    again = load_file(checkpoint_folder(run, 4) / "model.safetensors")
    assert all(
        torch.equal(again[name], value) for name, value in load_file(tmp_path / "last" / "model.safetensors").items()
    )
