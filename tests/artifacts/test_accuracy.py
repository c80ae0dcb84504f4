"""Differences between accuracies: their standard errors, and when they may be chance."""

import math
import statistics
from dataclasses import astuple

import numpy as np
import pytest

from longmlm.artifacts.accuracy import (
    Accuracy,
    Difference,
    Measured,
    accuracy_difference,
    paired_difference,
    row_difference,
)

NOTHING = Measured(Accuracy(None, None, None, 0), (), (), (), ())


def measured(selected: list[int], correct: list[int], error: float = 1.0) -> Measured:
    whole = Accuracy(100 * sum(correct) / sum(selected), error, 3.0, sum(selected))
    return Measured(whole, (whole,), (), tuple(selected), tuple(correct))


def test_on_the_same_tokens_it_is_the_paired_difference() -> None:
    first, second = measured([10, 12, 9], [4, 5, 6]), measured([10, 12, 9], [3, 2, 6])
    paired, found = paired_difference([first], [second]), row_difference(first, second)
    assert (found.points, found.standard_error) == pytest.approx((paired.points, paired.standard_error))


def test_the_error_is_that_of_repeated_measurements_though_rows_are_shared() -> None:
    """Both accuracies vary with the difficulty of a row: added as if independent, their errors are far too large."""
    generator, found = np.random.default_rng(5), []
    for _ in range(400):
        difficulty = generator.beta(2, 3, size=50)
        whole = generator.binomial(60, difficulty)
        start = generator.binomial(whole * 2, 0.25)  # among them, those of the first block
        found.append(row_difference(measured([60] * 50, whole.tolist()), measured([30] * 50, start.tolist())))
    spread = statistics.stdev(difference.points for difference in found)
    assert statistics.fmean(difference.standard_error for difference in found) == pytest.approx(spread, rel=0.1)


def test_the_worked_example_of_a_paired_difference() -> None:
    first, second = measured([10, 10], [4, 5]), measured([10, 10], [3, 2])
    assert astuple(paired_difference([first], [second])) == pytest.approx((20.0, 10.0))
    assert paired_difference([second], [first]).points == pytest.approx(-20.0)


def test_a_paired_difference_over_seeds_adds_up_each_row() -> None:
    selected, counts = [7, 5, 9], {"a": ([3, 1, 4], [2, 2, 5]), "b": ([2, 1, 3], [2, 0, 3])}
    first, second = ([measured(selected, correct) for correct in rows] for rows in counts.values())
    gains = [3 + 2 - 2 - 2, 1 + 2 - 1 - 0, 4 + 5 - 3 - 3]
    share = sum(gains) / 42
    residuals = [gain - share * 2 * count for gain, count in zip(gains, selected, strict=True)]
    error = math.sqrt(sum(residual**2 for residual in residuals) * 3 / 2) / 42
    assert astuple(paired_difference(first, second)) == pytest.approx((100 * share, 100 * error))


def test_rows_that_differ_or_are_alone_are_not_paired() -> None:
    assert paired_difference([measured([10, 10], [4, 5])], [measured([10, 9], [4, 5])]) is None
    assert paired_difference([], []) is None
    assert paired_difference([measured([10, 0], [6, 0])], [measured([10, 0], [5, 0])]) is None, "one row is not exact"


def test_errors_of_other_rows_or_of_a_single_one_are_added() -> None:
    first, second = measured([10, 10], [4, 5], error=3.0), measured([10, 10], [3, 5], error=4.0)
    single, other = measured([10], [4], error=3.0), measured([5], [1], error=4.0)
    for one in (first, single):
        assert row_difference(one, other).standard_error == pytest.approx(5.0)
    assert row_difference(first, NOTHING) is row_difference(NOTHING, first) is None
    found = accuracy_difference(first.whole, second.whole)
    assert (found.points, found.standard_error) == pytest.approx((5.0, 5.0))


@pytest.mark.parametrize(
    ("points", "error", "text", "is_within"),
    [
        (0.3, 1.6, "0.30 ± 1.60 points above X", True),
        (-0.3, 1.6, "0.30 ± 1.60 points below X", True),
        (-3.3, 1.6, "3.30 ± 1.60 points below X", False),
        (0.0, 0.5, "0.00 ± 0.50 points above X", True),
        (0.0, 0.0, "0.00 ± 0.00 points above X", False),
    ],
)
def test_a_difference_is_told_from_chance_by_two_standard_errors(points, error, text, is_within) -> None:
    difference = Difference(points, error)
    assert difference.is_within_error == is_within
    assert difference.compared_with("X") == text + ", which may be chance" * is_within
