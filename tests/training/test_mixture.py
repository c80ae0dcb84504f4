"""A run with weights: exact on resume, measured by source, and shown by trackers."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.rows import read_rows_manifest
from longmlm.batches.sampling import mixture_of
from longmlm.errors import CheckpointError, DataError, TrainingError
from longmlm.settings.masking import HeldOut
from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.training import loop, tracker
from tests.support.rows import mixed_rows
from tests.support.tiny import World
from tests.support.training import assert_same_model, evaluation_lines, losses, train_here, train_until, with_recipe

WEIGHTS = {"laws": 4.0}


@pytest.fixture
def mixed(world: World, settings: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """Eight steps of a long model, on rows of two sources with weights."""
    rows, start = mixed_rows(world.rows, tmp_path / "rows", 0.75, 0.25), Start(checkpoint=str(world.long))
    own = replace(settings, rows=str(rows), start=start)
    return with_recipe(own, num_steps=8, batch_tokens=400, weights=WEIGHTS, held_out=HeldOut(max_rows=16))


def test_a_run_draws_by_weight_measures_by_source_and_resumes_exactly(
    mixed: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, seen = loop.one_update, []

    def noted(task, run, batches, state):
        seen.extend(row_id for batch in batches for row_id in batch.row_ids)
        return update(task, run, batches, state)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "one_update", noted)
        whole = train_here(replace(mixed, run=str(tmp_path / "whole")))
    found = mixture_of(WEIGHTS, read_rows_manifest(Path(mixed.rows)).sources("train"))
    assert found is not None
    assert sorted(seen) == sorted(found.batch(0, len(seen), mixed.recipe.seed).row_ids.tolist())

    train_until(mixed, 6)
    resumed = train_here(mixed)
    assert_same_model(whole, resumed, 8)
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 8
    lines = evaluation_lines(resumed)
    assert lines == evaluation_lines(whole)
    for line in lines:
        assert list(line.base_chunks_by_source) == list(line.held_out.sources) == ["novels", "laws"]
    shown = tracker.figures(lines[-1])
    law, base = lines[-1].held_out.sources["laws"].whole, lines[-1].base_chunks_by_source["laws"]
    assert shown["held_out/laws/accuracy"] == law.accuracy and shown["held_out/laws/loss"] == law.loss
    assert shown["held_out/laws/recovery"] == law.accuracy - base.accuracy

    changed = with_recipe(mixed, weights={"laws": 2.0}, num_steps=9)
    with pytest.raises((CheckpointError, TrainingError), match="recipe.weights.laws was 4.0, is 2.0"):
        train_here(changed)


def test_weights_that_do_not_fit_the_rows_are_refused_before_training(mixed: PretrainConfig) -> None:
    with pytest.raises(DataError, match="weights.poems names no source to train on: name one of novels, laws"):
        train_here(with_recipe(mixed, weights={"poems": 2.0}))
    assert not Path(mixed.run).exists()
