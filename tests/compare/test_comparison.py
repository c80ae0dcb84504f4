"""What follows from trials: recovery, the best settings of an arm, paired differences, certainty."""

import math
import statistics
from dataclasses import astuple, replace

import pytest

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured, paired_difference
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.compare.comparison import Arm, Comparison, MeasuredTrial, mean_gain, student_cdf
from longmlm.experiments.experiment import FailedTrial
from longmlm.settings.masking import HeldOut


def comparison(*trials: MeasuredTrial, **settings: object) -> Comparison:
    return Comparison(model="m", row_length=8, baseline="a", trials=trials, **settings)


ACCURACIES = (17.0, 30.0, 36.5, 35.9, 36.2, 36.4)


def measured(accuracy: float, correct: tuple[int, ...] = (), selected: tuple[int, ...] = ()) -> Measured:
    whole = Accuracy(accuracy, 0.5, 3.0, 100)
    return Measured(whole, (whole,), (), selected, correct)


def trial(
    *accuracies: float, arm: str = "a", seed: int = 1, base_chunks: float = 36.0, error: float = 0.0, **values: float
) -> MeasuredTrial:
    curve = tuple(
        EvaluationMetrics(
            step=10 * index,
            tokens=1000 * index,
            held_out=measured(accuracy),
            base_chunks=base_chunks,
            recovery=Difference(accuracy - base_chunks, error),
        )
        for index, accuracy in enumerate(accuracies)
    )
    return MeasuredTrial(arm=arm, seed=seed, values=values, curve=curve)


def test_recovered_is_the_first_of_two_consecutive_evaluations() -> None:
    assert trial(*ACCURACIES).tokens_to_recovery() == 4000
    assert trial(17.0, 36.0, 36.0).tokens_to_recovery() == 1000
    assert trial(17.0, 30.0, 36.5).tokens_to_recovery() is None
    assert trial(36.5, 36.5).tokens_to_recovery() == 0
    assert trial(*ACCURACIES, error=0.1).tokens_to_recovery() == 2000, "35.9 is within two standard errors"
    assert trial(17.0, 35.0, 35.0, error=0.4).tokens_to_recovery() is None


def test_against_control_the_gain_of_the_base_model_is_added() -> None:
    control = trial(40.0, 40.1, 40.2, 40.3, 40.35, 40.4, arm="control")
    assert mean_gain([control], 2500) == pytest.approx(0.25)
    assert mean_gain([control], 9000) == pytest.approx(0.4)
    assert mean_gain([], 9000) == 0
    assert trial(*ACCURACIES).tokens_to_recovery([control]) is None
    assert trial(*ACCURACIES, 36.5).tokens_to_recovery([control]) == 5000
    assert trial(17.0, 35.9, 35.9).tokens_to_recovery([trial(40.0, 39.0, 38.0)]) is None, "a loss lowers nothing"


def test_an_arm_gets_the_values_that_served_it_best_with_the_first_seed() -> None:
    trials = [
        trial(17.0, 33.0, 35.0, rate=1e-4),
        trial(17.0, 36.1, 36.1, rate=2e-4),
        trial(17.0, 30.0, 38.0, rate=4e-4),
        trial(17.0, 30.0, 38.0, arm="b"),
        trial(17.0, 30.0, 36.5, rate=2e-4, seed=2),
    ]
    arm = comparison(*trials).arm("a")
    assert arm.values == {"rate": 2e-4}
    assert [one.seed for one in arm.trials] == [1, 2]
    assert arm.after == pytest.approx(36.3)
    assert arm.tokens_to_recovery() is None
    assert comparison(trials[0], trials[2]).arm("a").values == {"rate": 4e-4}


def test_the_control_arm_is_no_competitor() -> None:
    trials = (trial(17.0, 33.0), trial(17.0, 34.0, arm="b"), trial(39.0, 40.0, arm="control"))
    result = comparison(*trials, control="control")
    assert [arm.name for arm in result.arms()] == ["b", "a"]
    assert result.control_trials() == trials[2:]
    assert comparison(trials[2], control="control").arms() == []


def test_an_arm_of_which_a_trial_failed_is_the_last() -> None:
    trials = (trial(17.0, 37.0, 37.0, rate=1.0), trial(17.0, 33.0, arm="b"))
    assert [arm.name for arm in comparison(*trials).arms()] == ["a", "b"]
    other, same = (FailedTrial(arm="a", seed=2, values={"rate": rate}, reason="x") for rate in (2.0, 1.0))
    assert [arm.name for arm in comparison(*trials, failed=(other,)).arms()] == ["a", "b"]
    assert [arm.name for arm in comparison(*trials, failed=(same,)).arms()] == ["b", "a"]


def arm(*correct: tuple[int, ...], name: str = "a") -> Arm:
    """Returns an arm whose trial of seed 0, 1, ... predicts these tokens correctly in rows of 10 selected tokens."""
    trials = []
    for seed, counts in enumerate(correct):
        base = trial(1.0, 2.0, arm=name, seed=seed)
        line = EvaluationMetrics(step=1, tokens=1, held_out=measured(9.0, counts, (10,) * len(counts)))
        trials.append(replace(base, curve=(*base.curve, line)))
    return Arm(name=name, values={}, trials=tuple(trials))


def test_with_one_seed_the_error_is_that_over_rows_and_there_is_no_probability() -> None:
    first, second = arm((4, 5)), arm((3, 2), name="b")
    assert astuple(first.gain_over(second)) == pytest.approx((20.0, 10.0))
    assert first.probability_over(second) is None


def test_the_variance_between_seeds_is_added_to_that_over_rows() -> None:
    first, second = arm((4, 5), (6, 9)), arm((3, 2), (2, 5), name="b")
    rows = paired_difference([t.after for t in first.trials], [t.after for t in second.trials])
    between = statistics.variance([20.0, 40.0]) / 2
    gain = first.gain_over(second)
    assert gain.points == pytest.approx(30.0)
    assert gain.standard_error == pytest.approx(math.sqrt(rows.standard_error**2 + between))
    expected = student_cdf(gain.points / gain.standard_error, (gain.standard_error**2 / between) ** 2)
    assert first.probability_over(second) == pytest.approx(expected)
    assert second.probability_over(first) == pytest.approx(1 - expected)


@pytest.mark.parametrize(
    ("value", "freedom", "probability"),
    [(6.3138, 1.0, 0.95), (2.0150, 5.0, 0.95), (-2.2281, 10.0, 0.025), (0.0, 3.0, 0.5)],
)
def test_student_t_has_the_quantiles_of_tables(value: float, freedom: float, probability: float) -> None:
    assert student_cdf(value, freedom) == pytest.approx(probability, abs=1e-5)


def test_student_t_is_normal_with_many_degrees_of_freedom() -> None:
    assert student_cdf(1.3, 1e9) == statistics.NormalDist().cdf(1.3)
    assert student_cdf(1.3, 9999.0) == pytest.approx(statistics.NormalDist().cdf(1.3), abs=1e-4)


def test_seeds_that_cancel_out_are_no_certainty() -> None:
    first, second = arm((5, 6, 5, 6), (1, 2, 1, 2)), arm((3, 4, 3, 4), (3, 4, 3, 4), name="b")
    assert first.gain_over(second).standard_error == pytest.approx(20.0)
    assert first.probability_over(second) == pytest.approx(0.5)


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    assert arm((6, 5), (9, 5)).gain_over(arm((4, 5), name="b")).points == pytest.approx(10.0)


@pytest.mark.parametrize("other", [{"rows_sha256": "x"}, {"held_out": HeldOut(mask_seed=1)}])
def test_arms_with_other_rows_or_masks_are_not_paired(other: dict[str, object]) -> None:
    first, second = arm((4, 5)), arm((3, 2), name="b")
    changed = replace(second, trials=tuple(replace(one, **other) for one in second.trials))
    assert first.gain_over(second) is not None
    assert first.gain_over(changed) is None
    assert first.probability_over(changed) is None
