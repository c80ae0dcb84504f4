"""Runs whose positions are generated from n trained rows: rebuilt from longmlm.json, stock on disk."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.provenance import read_provenance
from longmlm.model.position_table import hierarchical_table, position_table_of
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.release import release
from longmlm.training.run_folder import best_checkpoint, checkpoint_folder
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, prove_in_this_process
from tests.support.training import assert_same_model, losses, train_until


@pytest.fixture
def generated(settings, models) -> PretrainConfig:
    """Twelve steps from the long checkpoint whose positions are generated."""
    return replace(settings, rows=str(models["rows"]), start=Start(checkpoint=str(models["generated"])))


def table_of(folder: Path) -> torch.Tensor:
    return position_table_of(AutoModelForMaskedLM.from_pretrained(folder)).usable_rows


def test_the_trained_table_stays_a_decomposition_and_is_written_in_full(generated, models, train):
    before, after = table_of(models["generated"]), table_of(checkpoint_folder(train(generated), 12))
    assert after.shape == before.shape == (LONG_POSITIONS, before.shape[1])
    assert ((after - before).abs().max(dim=1).values > 1e-4).all()
    assert torch.equal(after, hierarchical_table(after[:NUM_POSITIONS], LONG_POSITIONS, 0.4))


def test_materialized_rows_leave_the_decomposition(generated, models, train):
    run = train(replace(generated, start=Start(checkpoint=str(models["materialized"]))))
    after = table_of(checkpoint_folder(run, 12))
    assert not torch.allclose(after, hierarchical_table(after[:NUM_POSITIONS], LONG_POSITIONS, 0.4), atol=1e-3)


def test_a_killed_run_resumed_equals_an_uninterrupted_one_bit_for_bit(generated, train, tmp_path):
    whole = train(replace(generated, run=str(tmp_path / "whole")))
    train_until(generated, 6)
    resumed = train(generated)
    assert read_provenance(checkpoint_folder(resumed, 8)).extension.mode == "generated"
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)


@pytest.mark.parametrize("num_positions", [None, NUM_POSITIONS**2, 30])
def test_a_trained_model_is_released_at_any_length(generated, train, tmp_path, monkeypatch, capsys, num_positions):
    run = train(generated)
    best = best_checkpoint(run)
    prove_in_this_process(monkeypatch)
    monkeypatch.setattr("longmlm.release.build.evaluation_of", lambda *_: None)
    config = ReleaseConfig(
        model=str(best),
        rows=generated.rows,
        output=str(tmp_path / "released"),
        card=ReleaseCard(title="tiny", license="mit"),
        recipe=ReleaseRecipe(num_positions=num_positions),
    )
    release(config)
    length = num_positions or LONG_POSITIONS
    table = table_of(tmp_path / "released")
    shared = min(length, LONG_POSITIONS)
    assert len(table) == length
    assert torch.equal(table[:shared], table_of(best)[:shared])
    assert read_provenance(tmp_path / "released").extension.num_positions == length
    assert f"up to {length} tokens" in (tmp_path / "released" / "README.md").read_text()
    assert "reloaded with plain transformers" in capsys.readouterr().out
