"""The position table has its own learning rate, and in the first steps it alone is trained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from longmlm.errors import CheckpointError
from longmlm.folders import MANIFEST, seal
from longmlm.model.loading import load_model, new_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of
from longmlm.settings.pretrain import PretrainRecipe, Start
from longmlm.training.backend import PlainBackend
from longmlm.training.optimizer import group_rates, learning_rate, set_rates
from longmlm.training.run_folder import checkpoint_folder
from tests.support.families import tiny_model
from tests.support.training import (
    assert_same_model,
    losses,
    stop_after,
    training_lines,
    weights_at,
    with_recipe,
    with_runtime,
)

TABLE = "roberta.embeddings.position_embeddings.weight"
RECIPE = PretrainRecipe(num_steps=10, batch_tokens=1, learning_rate=0.5, warmup_steps=4)


def every_step_saved(settings, **recipe):
    return with_runtime(with_recipe(settings, **recipe), save_every_steps=1, checkpoints_kept=100)


def optimizer_at(run: Path, step: int) -> dict:
    return torch.load(checkpoint_folder(run, step) / "optimizer.pt", weights_only=True)["state"]


def changed_between(run: Path, before: int, after: int) -> set[str]:
    left, right = weights_at(run, before), weights_at(run, after)
    return {name for name in left if not torch.equal(left[name], right[name])}


def one_big_update(position_rate: float) -> dict[str, torch.Tensor]:
    """Returns the parameters after one update with gradients of 1, from a position table of zeros."""
    recipe = replace(RECIPE, position_rate=position_rate)
    objective = MlmObjective(tiny_model("roberta", 1))
    backend = PlainBackend.wrap(Accelerator(cpu=True), objective, recipe)
    table = position_table_of(objective.model).rows.weight
    with torch.no_grad():
        table.zero_()
    for parameter in objective.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_rates(backend.parameter_groups, 2, recipe)
    backend.step()
    return dict(objective.model.named_parameters())


def test_the_first_update_of_the_table_is_the_factor_times_as_large_and_the_others_are_the_same():
    once, four_times = one_big_update(1.0), one_big_update(4.0)
    assert torch.equal(four_times[TABLE], 4 * once[TABLE])
    assert once[TABLE].abs().max() > 0.1
    assert all(torch.equal(once[name], four_times[name]) for name in once.keys() - {TABLE})


def test_the_rate_of_each_group_follows_the_schedule():
    plain, factor, first = RECIPE, replace(RECIPE, position_rate=3.0), replace(RECIPE, positions_first_steps=2)
    for step in range(10):
        rate = learning_rate(step, RECIPE)
        assert group_rates(step, plain) == (rate, rate)
        assert group_rates(step, factor) == (3 * rate, rate, rate)
        assert group_rates(step, first) == ((rate, 0, 0) if step < 2 else (rate, rate, rate))


@pytest.mark.parametrize(
    "changed",
    [
        {"position_rate": 0.0},
        {"position_rate": float("inf")},
        {"position_rate": float("nan")},
        {"positions_first_steps": -1},
        {"positions_first_steps": 11},
    ],
)
def test_impossible_values_are_refused(changed):
    with pytest.raises(ValueError, match=next(iter(changed))):
        replace(RECIPE, **changed)


def test_a_factor_changes_the_first_step_of_a_run_in_the_table_alone(settings, train, tmp_path):
    settings = every_step_saved(settings, num_steps=2, weight_decay=0.5)
    one, four = (
        train(replace(with_recipe(settings, position_rate=factor), run=str(tmp_path / str(factor))))
        for factor in (1.0, 4.0)
    )
    start = new_model(str(settings.start.architecture), str(settings.start.tokenizer), settings.recipe.seed).model
    before, left, right = start.state_dict()[TABLE], weights_at(one, 1), weights_at(four, 1)
    torch.testing.assert_close(right[TABLE] - before, 4 * (left[TABLE] - before), rtol=1e-3, atol=2e-8)
    assert (left[TABLE] - before).abs().max() > 1e-4
    assert all(torch.equal(left[name], right[name]) for name in left.keys() - {TABLE})
    rates = [[line.learning_rate for line in training_lines(run)] for run in (one, four)]
    assert rates[0] == rates[1] == [learning_rate(step, settings.recipe) for step in (0, 1)]


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_only_the_table_moves_in_the_first_steps_and_everything_after_them(settings, train, precision):
    run = train(every_step_saved(settings, positions_first_steps=5, precision=precision))
    start = new_model(str(settings.start.architecture), str(settings.start.tokenizer), settings.recipe.seed).model
    before, first = start.state_dict(), weights_at(run, 1)
    assert {name for name, value in first.items() if not torch.equal(value, before[name])} == {TABLE}
    assert all(changed_between(run, step, step + 1) == {TABLE} for step in range(1, 5))
    assert changed_between(run, 5, 6) == first.keys() and len(first) > 20
    assert [len(optimizer_at(run, step)) for step in (1, 5)] == [1, 1]
    steps = {index: float(state["step"]) for index, state in optimizer_at(run, 6).items()}
    assert steps.pop(0) == 6 and set(steps.values()) == {1} and len(steps) > 20
    rates = [line.learning_rate for line in training_lines(run)]
    assert rates == [learning_rate(step, settings.recipe) for step in range(12)]


def test_clipping_in_the_first_steps_uses_the_norm_of_the_tables_gradient(settings, train, tmp_path):
    settings = every_step_saved(settings, num_steps=2, positions_first_steps=1, dropout=0.0)
    norms = {}
    for most in (1e-3, 1e3):
        run = train(replace(with_recipe(settings, max_gradient_norm=most), run=str(tmp_path / str(most))))
        mean = optimizer_at(run, 1)[0]["exp_avg"]  # a tenth of the first gradient, after clipping
        norms[most] = (training_lines(run)[0].gradient_norm, 10 * float(mean.norm()))
    assert norms[1e-3][1] == pytest.approx(1e-3, rel=1e-3)
    assert norms[1e3][1] == pytest.approx(norms[1e3][0], rel=1e-5)
    whole = train(replace(with_recipe(settings, positions_first_steps=0), run=str(tmp_path / "whole")))
    assert norms[1e3][0] == norms[1e-3][0] < 0.9 * training_lines(whole)[0].gradient_norm


@pytest.mark.parametrize(("num_first", "precision"), [(8, "no"), (8, "fp16"), (4, "no"), (3, "no")])
def test_a_killed_run_resumed_equals_an_uninterrupted_one(settings, train, tmp_path, monkeypatch, num_first, precision):
    """The checkpoint of step 4 lies within the first steps, at their end, or after it."""
    settings = with_recipe(settings, positions_first_steps=num_first, position_rate=2.0, precision=precision)
    whole = train(replace(settings, run=str(tmp_path / "whole")))
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        with pytest.raises(SystemExit):
            train(settings)
    with pytest.raises(CheckpointError, match=r"recipe\.position_rate was 2\.0, is 1\.0"):
        train(with_recipe(settings, position_rate=1.0))
    resumed = train(settings)
    assert_same_model(whole, resumed, 12)
    assert losses(whole) == losses(resumed) and len(losses(whole)) == 12


def test_a_checkpoint_from_before_these_settings_resumes(uninterrupted, half_trained, train):
    folder = checkpoint_folder(Path(half_trained.run), 4)
    saved = json.loads((folder / "state.json").read_text())
    assert (saved["recipe"].pop("position_rate"), saved["recipe"].pop("positions_first_steps")) == (1.0, 0)
    (folder / "state.json").write_text(json.dumps(saved))
    (folder / MANIFEST).unlink()
    seal(folder.rename(folder.with_name("scratch")), folder)
    with pytest.raises(CheckpointError, match=r"recipe\.positions_first_steps was 0, is 2"):
        train(with_recipe(half_trained, positions_first_steps=2))
    train(half_trained)
    assert_same_model(uninterrupted, Path(half_trained.run), 12)


def test_generated_rows_alone_move_in_the_first_steps(settings, models, train):
    start = Start(checkpoint=str(models["generated"]))
    settings = every_step_saved(replace(settings, rows=str(models["rows"]), start=start), positions_first_steps=5)
    run = train(settings)
    before, first = load_model(str(models["generated"])).model.state_dict(), weights_at(run, 1)
    assert {name for name, value in first.items() if not torch.equal(value, before[name])} == {TABLE}
    assert changed_between(run, 1, 5) == {TABLE}
    assert changed_between(run, 5, 6) == first.keys()
    [state] = optimizer_at(run, 5).values()
    assert len(state["exp_avg"]) < len(first[TABLE])  # the reserved and the base rows
