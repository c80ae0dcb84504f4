"""The position table's own learning rate and first steps in two processes: the training of one."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longmlm.settings.pretrain import PretrainConfig, Start
from longmlm.training.run_folder import checkpoint_folder
from tests.support.launching import accelerate, trained
from tests.support.training import (
    assert_same_model,
    losses,
    moments_at,
    training_lines,
    weights_at,
    with_recipe,
    with_runtime,
)

SLOW = pytest.mark.slow
TABLE = "roberta.embeddings.position_embeddings.weight"
YAMLS = ["two-cpu-processes.yaml", "zero-2.yaml"]
OTHERS = [pytest.param(f"zero-{name}.yaml", marks=SLOW) for name in ("1", "3", "2-offload", "3-offload")]
NUM_FIRST = 5


@pytest.fixture
def first(settings, tmp_path) -> PretrainConfig:
    """Twelve steps, of which the first five train the position table alone."""
    settings = with_runtime(settings, save_every_steps=1, checkpoints_kept=100, rows_per_micro_batch=2)
    recipe = {"positions_first_steps": NUM_FIRST, "position_rate": 4.0, "max_gradient_norm": 0.1}
    return replace(with_recipe(settings, **recipe), run=str(tmp_path / "two"))


def step_counts(run: Path, step: int) -> list[float]:
    return [float(count) for count in moments_at(run, step, "step")]


@pytest.mark.parametrize("yaml", [*YAMLS, *OTHERS])
def test_two_processes_train_as_one(first, train, tmp_path, yaml):
    first = with_recipe(first, dropout=0.0)
    one = train(replace(with_runtime(first, rows_per_micro_batch=64), run=str(tmp_path / "one")))
    two = trained(first, tmp_path, accelerate(yaml))
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    norms = [[line.gradient_norm for line in training_lines(run)] for run in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert max(norms[0]) > first.recipe.max_gradient_norm
    for step in (1, NUM_FIRST, NUM_FIRST + 1, 12):
        for name, value in weights_at(one, step).items():
            torch.testing.assert_close(weights_at(two, step)[name], value, rtol=0, atol=2e-6)
    unmoved, moved = weights_at(one, 1), weights_at(two, NUM_FIRST)
    assert [name for name in moved if not torch.equal(moved[name], unmoved[name])] == [TABLE]
    assert step_counts(two, 12) == step_counts(one, 12)
    assert step_counts(two, 12)[0] == 12 and set(step_counts(two, 12)[1:]) == {12 - NUM_FIRST}
    for left, right in zip(moments_at(one, NUM_FIRST + 1), moments_at(two, NUM_FIRST + 1), strict=True):
        torch.testing.assert_close(right, left, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("yaml", [pytest.param("two-cpu-processes.yaml", marks=SLOW), "zero-2.yaml", *OTHERS])
def test_resumed_in_the_first_steps_equals_an_uninterrupted_run_bit_for_bit(first, tmp_path, yaml):
    whole = trained(first, tmp_path, accelerate(yaml))
    resumed = trained(kept_until(3, whole, first, tmp_path / "resumed"), tmp_path, accelerate(yaml))
    assert_same_model(whole, resumed, 12)
    assert step_counts(whole, 12) == step_counts(resumed, 12)
    assert losses(whole) == losses(resumed) and len(losses(whole)) == 12


def kept_until(step: int, whole: Path, settings: PretrainConfig, run: Path) -> PretrainConfig:
    """Copies a run without its checkpoints after `step`; returns the settings that resume the copy."""
    shutil.copytree(whole, run)
    for later in range(step + 1, 13):
        shutil.rmtree(checkpoint_folder(run, later))
    return replace(settings, run=str(run))


@SLOW
@pytest.mark.parametrize("zero", ["zero-2.yaml", "zero-3.yaml"])
def test_resumed_in_the_first_steps_under_another_backend(first, train, tmp_path, zero):
    first = with_recipe(first, dropout=0.0)
    one = train(replace(first, run=str(tmp_path / "one")))
    two = trained(kept_until(3, one, first, tmp_path / "two"), tmp_path, accelerate(zero))
    back = train(kept_until(4, two, first, tmp_path / "back"))
    for run in (two, back):
        assert losses(run) == pytest.approx(losses(one), rel=1e-6)
        assert step_counts(run, 12) == step_counts(one, 12)
        for name, value in weights_at(one, 12).items():
            torch.testing.assert_close(weights_at(run, 12)[name], value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("yaml", ["zero-2.yaml", pytest.param("zero-3.yaml", marks=SLOW)])
def test_generated_positions_in_two_processes(first, models, train, tmp_path, yaml):
    start = Start(checkpoint=str(models["generated"]))
    first = with_recipe(replace(first, rows=str(models["rows"]), start=start), dropout=0.0)
    one = train(replace(first, run=str(tmp_path / "one")))
    two = trained(first, tmp_path, accelerate(yaml))
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    before, after = weights_at(two, 1), weights_at(two, NUM_FIRST)
    assert [name for name in after if not torch.equal(after[name], before[name])] == [TABLE]
    torch.testing.assert_close(weights_at(two, 12)[TABLE], weights_at(one, 12)[TABLE], rtol=0, atol=2e-6)
