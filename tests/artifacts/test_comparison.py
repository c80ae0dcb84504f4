"""What follows from trials: recovery, the best settings of an arm, paired differences, certainty."""

import math
import statistics
from dataclasses import astuple

import pytest

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured, paired_difference
from longmlm.artifacts.comparison import Arm, Comparison, Trial, arm_of, certainty, mean_gain
from longmlm.artifacts.metrics import EvaluationMetrics

ACCURACIES = (17.0, 30.0, 36.5, 35.9, 36.2, 36.4)


def measured(accuracy: float, correct: tuple[int, ...] = (), selected: tuple[int, ...] = ()) -> Measured:
    whole = Accuracy(accuracy, 0.5, 3.0, 100)
    return Measured(whole, (whole,), (), selected, correct)


def trial(*accuracies: float, arm: str = "a", seed: int = 1, base_cut: float = 36.0, **values: float) -> Trial:
    curve = tuple(
        EvaluationMetrics(step=10 * index, tokens=1000 * index, held_out=measured(accuracy), base_cut=base_cut)
        for index, accuracy in enumerate(accuracies)
    )
    return Trial(arm=arm, seed=seed, values=values, curve=curve)


def test_recovered_is_the_first_of_two_consecutive_evaluations() -> None:
    assert trial(*ACCURACIES).tokens_to_recovery() == 4000
    assert trial(17.0, 36.0, 36.0).tokens_to_recovery() == 1000
    assert trial(17.0, 30.0, 36.5).tokens_to_recovery() is None
    assert trial(36.5, 36.5).tokens_to_recovery() == 0


def test_against_control_the_gain_of_the_base_model_is_added() -> None:
    control = trial(40.0, 40.1, 40.2, 40.3, 40.35, 40.4, arm="control")
    assert mean_gain([control], 2500) == pytest.approx(0.25)
    assert mean_gain([control], 9000) == pytest.approx(0.4)
    assert mean_gain([], 9000) == 0
    assert trial(*ACCURACIES).tokens_to_recovery([control]) is None
    assert trial(*ACCURACIES, 36.5).tokens_to_recovery([control]) == 5000


def test_an_arm_gets_the_values_that_served_it_best_with_the_first_seed() -> None:
    trials = [
        trial(17.0, 33.0, 35.0, rate=1e-4),
        trial(17.0, 36.1, 36.1, rate=2e-4),
        trial(17.0, 30.0, 38.0, rate=4e-4),
        trial(17.0, 30.0, 38.0, arm="b"),
        trial(17.0, 30.0, 36.5, rate=2e-4, seed=2),
    ]
    arm = arm_of(trials, "a")
    assert arm.values == {"rate": 2e-4}
    assert [one.seed for one in arm.trials] == [1, 2]
    assert arm.after == pytest.approx(36.3)
    assert arm.tokens_to_recovery() is None
    assert arm_of(trials[:1] + trials[2:3], "a").values == {"rate": 4e-4}


def test_the_control_arm_is_no_competitor() -> None:
    trials = (trial(17.0, 33.0), trial(17.0, 34.0, arm="b"), trial(39.0, 40.0, arm="control"))
    comparison = Comparison(model="m", row_length=8, plain="a", control="control", trials=trials)
    assert [arm.name for arm in comparison.arms()] == ["b", "a"]
    assert comparison.control_trials() == trials[2:]


def test_the_worked_example_of_a_paired_difference() -> None:
    first, second = measured(45.0, (4, 5), (10, 10)), measured(25.0, (3, 2), (10, 10))
    assert astuple(paired_difference([first], [second])) == pytest.approx((20.0, 10.0))
    assert paired_difference([second], [first]).points == pytest.approx(-20.0)


def test_a_paired_difference_over_seeds_adds_up_each_row() -> None:
    selected, counts = (7, 5, 9), {"a": ((3, 1, 4), (2, 2, 5)), "b": ((2, 1, 3), (2, 0, 3))}
    first, second = ([measured(1.0, correct, selected) for correct in rows] for rows in counts.values())
    gains = [3 + 2 - 2 - 2, 1 + 2 - 1 - 0, 4 + 5 - 3 - 3]
    share = sum(gains) / 42
    residuals = [gain - share * 2 * count for gain, count in zip(gains, selected, strict=True)]
    error = math.sqrt(sum(residual**2 for residual in residuals) * 3 / 2) / 42
    assert astuple(paired_difference(first, second)) == pytest.approx((100 * share, 100 * error))


def test_rows_that_differ_or_are_unknown_are_not_paired() -> None:
    first = measured(45.0, (4, 5), (10, 10))
    assert paired_difference([first], [measured(45.0, (4, 5), (10, 9))]) is None
    assert paired_difference([measured(45.0)], [measured(45.0)]) is None
    assert paired_difference([], []) is None


def test_certainty_is_that_of_a_normal_error() -> None:
    assert certainty(Difference(1.0, 0.5)) == pytest.approx(statistics.NormalDist().cdf(2.0))
    assert certainty(Difference(-1.0, 0.5)) == pytest.approx(0.02275, abs=1e-5)
    assert certainty(None) is None


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    def with_rows(seed: int, correct: int) -> Trial:
        base = trial(1.0, 2.0, seed=seed)
        line = EvaluationMetrics(step=1, tokens=1, held_out=measured(9.0, (correct, 5), (10, 10)))
        return Trial(arm="a", seed=seed, curve=(*base.curve, line))

    more = Arm(name="a", values={}, trials=(with_rows(1, 6), with_rows(2, 9)))
    fewer = Arm(name="b", values={}, trials=(with_rows(1, 4),))
    assert more.better_than(fewer).points == pytest.approx(10.0)
