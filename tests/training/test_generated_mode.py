"""Runs that train base rows alone: rebuilt from longmlm.json, stock on disk, the same under two processes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from longmlm.artifacts.provenance import read_provenance
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import write_extension
from longmlm.model.loading import load_model
from longmlm.model.positions import hierarchical_table
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages.release import release
from longmlm.training import checkpoint
from longmlm.training.checkpoint import folder_of
from tests.support.tiny import (
    LONG_POSITIONS,
    NUM_POSITIONS,
    prove_in_this_process,
    tiny_extension,
    tiny_folder,
    tiny_rows,
)
from tests.training.test_processes import launch
from tests.training.test_run import assert_same_model, losses, stop_after


@pytest.fixture(scope="module")
def grounds(tmp_path_factory) -> dict[str, Path]:
    """A base model, rows of the long length, and the long checkpoint of either mode."""
    folder = tmp_path_factory.mktemp("generated")
    base = tiny_folder(folder / "base")
    rows = tiny_rows(folder, base)
    for mode in ("generated", "materialized"):
        write_extension(load_model(str(base)), tiny_extension(base, mode=mode), folder / mode)
    return {"rows": rows, **{mode: folder / mode for mode in ("generated", "materialized")}}


@pytest.fixture
def generated(settings, grounds) -> PretrainConfig:
    """Twelve steps from the long checkpoint whose positions are generated."""
    return replace(settings, rows=str(grounds["rows"]), start=Start(checkpoint=str(grounds["generated"])))


def table_of(folder: Path) -> torch.Tensor:
    parts = architecture_of(AutoModelForMaskedLM.from_pretrained(folder))
    return parts.position_table.weight.detach()[parts.position_offset :]


def test_what_is_trained_stays_a_decomposition_and_lies_on_disk_as_rows(generated, grounds, train):
    before, after = table_of(grounds["generated"]), table_of(folder_of(train(generated), 12))
    assert after.shape == before.shape == (LONG_POSITIONS, before.shape[1])
    assert ((after - before).abs().max(dim=1).values > 1e-4).all()
    assert torch.equal(after, hierarchical_table(after[:NUM_POSITIONS], LONG_POSITIONS, 0.4))


def test_materialized_rows_go_their_own_ways(generated, grounds, train):
    run = train(replace(generated, start=Start(checkpoint=str(grounds["materialized"]))))
    after = table_of(folder_of(run, 12))
    assert not torch.allclose(after, hierarchical_table(after[:NUM_POSITIONS], LONG_POSITIONS, 0.4), atol=1e-3)


def test_a_killed_run_resumed_equals_an_uninterrupted_one_bit_for_bit(generated, train, tmp_path, monkeypatch):
    whole = train(replace(generated, run=str(tmp_path / "whole")))
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(generated)
    resumed = train(generated)
    assert read_provenance(folder_of(resumed, 4)).extension.mode == "generated"
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed)


@pytest.mark.parametrize("two", ["two-cpu-processes.yaml", pytest.param("zero-3.yaml", marks=pytest.mark.slow)])
def test_two_processes_have_the_losses_of_one(generated, tmp_path, two):
    generated = replace(generated, recipe=replace(generated.recipe, dropout=0.0))
    found = []
    for num_processes, yaml in ((1, "single.yaml"), (2, two)):
        run = tmp_path / str(num_processes)
        runtime = replace(generated.runtime, rows_per_micro_batch=8 // num_processes, num_processes=num_processes)
        done = launch(replace(generated, run=str(run), runtime=runtime), yaml, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(losses(run))
    assert len(found[0]) == 12
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    one, shared = (load_file(folder_of(tmp_path / str(count), 12) / "model.safetensors") for count in (1, 2))
    for key in [key for key in one if not key.endswith("key.bias")]:  # without a gradient, AdamW enlarges its rounding
        torch.testing.assert_close(shared[key], one[key], rtol=0, atol=2e-6)


@pytest.mark.parametrize("num_positions", [None, NUM_POSITIONS**2, 30])
def test_a_trained_model_is_released_at_any_length(generated, train, tmp_path, monkeypatch, capsys, num_positions):
    run = train(generated)
    best = checkpoint.best(run)
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    prove_in_this_process(monkeypatch)
    monkeypatch.setattr("longmlm.release.gate.read_evaluation", lambda *_: {})
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
