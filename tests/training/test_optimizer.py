import itertools
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from longmlm.artifacts.accuracy import Difference, first_recovered, row_difference
from longmlm.artifacts.run import TrainState
from longmlm.errors import TrainingError
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.optimizer import Optimizer, learning_rate
from longmlm.training.run import accuracy_reached
from tests.support.evaluations import FULL, on_rows

RECIPE = PretrainRecipe(num_steps=100, batch_tokens=1, learning_rate=0.5, warmup_steps=10)


def rates(recipe: PretrainRecipe) -> list[float]:
    return [learning_rate(step, recipe) for step in range(recipe.num_steps)]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rate_rises_to_its_peak_and_falls_to_nearly_nothing(schedule):
    found = rates(replace(RECIPE, schedule=schedule))
    assert found[:10] == pytest.approx([0.05 * (step + 1) for step in range(10)])
    assert max(found) == found[10] == 0.5
    assert all(before > after for before, after in pairwise(found[10:]))
    assert 0 < found[-1] < 0.01


def test_constant_then_decay_is_constant_until_the_decay():
    found = rates(replace(RECIPE, schedule="constant-then-decay", decay_steps=20))
    assert set(found[9:81]) == {0.5}
    assert found[-1] == pytest.approx(0.5 / 20)


def test_more_steps_change_no_rate_while_it_is_constant():
    short = replace(RECIPE, schedule="constant-then-decay", decay_steps=20)
    longer = replace(short, num_steps=200)
    assert short.is_constant(80)
    assert rates(short)[:80] == rates(longer)[:80]
    assert not short.is_constant(81)
    assert rates(short)[:82] != rates(longer)[:82]


def test_rate_of_a_linear_schedule_always_depends_on_the_number_of_steps():
    assert not RECIPE.is_constant(20)


def test_biases_and_layer_norms_are_not_decayed_and_nothing_is_left_out():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))
    decayed, spared = Optimizer.of(model, RECIPE).torch_optimizer.param_groups
    assert decayed["weight_decay"] == RECIPE.weight_decay > 0
    assert spared["weight_decay"] == 0
    assert {id(one) for one in decayed["params"]} == {id(model[0].weight), id(model[1].weight)}
    assert {id(one) for one in spared["params"]} == {id(model[1].bias), id(model[2].weight), id(model[2].bias)}


def test_optimizer_takes_its_constants_from_the_recipe():
    recipe = replace(RECIPE, adam_beta2=0.9, adam_epsilon=1e-3)
    group = Optimizer.of(nn.Linear(2, 2), recipe).torch_optimizer.param_groups[0]
    assert (group["betas"], group["eps"]) == ((recipe.adam_beta1, 0.9), 1e-3)


def test_an_optimizer_knows_the_bytes_that_its_first_update_allocates():
    model = nn.Linear(7, 3)
    optimizer = Optimizer.of(model, RECIPE)
    model(torch.ones(1, 7)).sum().backward()
    optimizer.update(1e-3, torch.tensor(1.0))
    states = [state[name] for state in optimizer.torch_optimizer.state.values() for name in Optimizer.STATES]
    assert optimizer.state_bytes == sum(state.nbytes for state in states) > 0
    assert optimizer.gradient_bytes == sum(parameter.grad.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_an_update_whose_norm_is_not_finite_is_skipped(norm):
    model = nn.Linear(2, 2)
    optimizer, before = Optimizer.of(model, RECIPE), model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.update(1e-3, torch.tensor(norm))
    assert torch.equal(model.weight, before)
    optimizer.update(1e-3, torch.tensor(1.0))
    assert not torch.equal(model.weight, before)


BASE, LOWER, WITHIN, HIGHER = on_rows(5, 6, 4, 5), on_rows(4, 5, 3, 4), on_rows(3, 6, 4, 5), on_rows(6, 6, 6, 6)


@pytest.mark.parametrize(
    ("evaluations", "recovered_at"),
    [
        ((LOWER, WITHIN, HIGHER, LOWER), (1, 100)),
        ((WITHIN, HIGHER), (0, 0)),
        ((HIGHER,), None),
        ((HIGHER, LOWER, WITHIN), None),
        ((WITHIN, LOWER, HIGHER, WITHIN, HIGHER), (2, 200)),
    ],
)
def test_a_run_has_recovered_at_the_first_of_two_evaluations_in_a_row(evaluations, recovered_at):
    state = TrainState(base_chunks=BASE, base_cut=HIGHER.whole).after_evaluation(evaluations[0])
    for held_out in evaluations[1:]:
        state = state.after_update(4, 100, 1.0)
        assert state.accuracy_here is None
        state = state.after_evaluation(held_out)
    assert (state.recovered_at_step, state.recovered_at_tokens) == (recovered_at or (None, None))
    assert state.accuracy_here == evaluations[-1].whole.accuracy
    gains = [row_difference(held_out, BASE) for held_out in evaluations]
    assert first_recovered(gains) == (recovered_at and recovered_at[0]) and state.recovery == gains[-1]


def test_a_run_and_the_evaluation_of_the_same_rows_agree_on_recovery():
    for counts in itertools.product((2, 4, 6), repeat=4):
        state = TrainState(step=1, base_chunks=BASE).after_evaluation(on_rows(*counts))
        confirmed = state.after_update(4, 100, 1.0).after_evaluation(on_rows(*counts))
        evaluation = replace(FULL, measured={"base_chunks": BASE, "long_after": on_rows(*counts)})
        assert (confirmed.recovered_at_step == 1) == evaluation.is_recovered
        assert state.recovery == evaluation.recovery


@pytest.mark.parametrize(
    ("gain", "at", "expected"),
    [
        (Difference(-0.5, 0.5), 1_000, "0.50 ± 0.50 points below BASE, which may be chance: recovered at step 1,000"),
        (Difference(-0.5, 0.1), 1_000, "0.50 ± 0.10 points below BASE: recovered at step 1,000, but no longer"),
        (
            Difference(0.5, 0.1),
            None,
            "0.50 ± 0.10 points above BASE: at the base model's accuracy, not yet confirmed by a second evaluation",
        ),
        (Difference(-0.5, 0.1), None, "0.50 ± 0.10 points below BASE: not yet recovered"),
        (None, None, ""),
    ],
)
def test_the_accuracy_reached_is_stated_with_its_difference_from_the_base_model(gain, at, expected):
    state = TrainState(step=2_000, base_chunks=on_rows(5, 5)).after_evaluation(on_rows(4, 5))
    stated = accuracy_reached(replace(state, recovery=gain, recovered_at_step=at))
    expected = f", {expected}".replace("BASE", "the base model's 50.00 % in chunks") if expected else ""
    assert stated == f"held-out accuracy 45.00 % at step 2000{expected}"


def test_torch_skips_an_update_whose_gradients_are_not_finite():
    Optimizer.check_skips(torch.device("cpu"))


class Heedless(torch.optim.AdamW):
    def step(self, *arguments):
        self.found_inf = None
        return super().step(*arguments)


class Counting(torch.optim.AdamW):
    """Keeps the weights, and not its state."""

    def step(self, *arguments):
        before = [group["params"][0].detach().clone() for group in self.param_groups]
        skips, self.found_inf = bool(self.found_inf), None
        super().step(*arguments)
        for group, weight in zip(self.param_groups, before, strict=True):
            group["params"][0].data.copy_(weight if skips else group["params"][0])


class Idle(torch.optim.AdamW):
    def step(self, *arguments):
        self.found_inf = torch.ones_like(self.found_inf)
        return super().step(*arguments)


@pytest.mark.parametrize("kind", [Heedless, Counting, Idle])
def test_a_torch_that_does_not_skip_such_an_update_is_refused_before_training(kind, settings, train, monkeypatch):
    monkeypatch.setattr(torch.optim, "AdamW", kind)
    with pytest.raises(
        TrainingError, match=r"^the fused AdamW of torch \S+ does not skip an update .* install another"
    ):
        train(settings)
