"""Bootstrap intervals cover the true value about as often as they say, and pairing makes them narrower."""

from dataclasses import dataclass

import numpy as np
import pytest

from longmlm.experiments.intervals import NUM_RESAMPLES, averaged, divided, resampled, scores

NUM_DOCUMENTS, ACCURACY = 150, 0.8
ALONE = [f"{number:03}" for number in range(NUM_DOCUMENTS)]


@dataclass(frozen=True)
class Shares:
    """Sums over documents divided by sums over documents, in percent."""

    parts: np.ndarray
    wholes: np.ndarray

    @property
    def counted(self) -> np.ndarray:
        return self.wholes > 0

    def values(self, weights: np.ndarray) -> np.ndarray:
        return 100 * divided(weights @ self.parts, weights @ self.wholes)


def simulated(correct: np.ndarray) -> Shares:
    """Returns as many accuracies as there are columns."""
    return Shares(correct.astype(np.float64), np.ones(correct.shape))


def test_intervals_cover_the_true_value_as_often_as_they_say() -> None:
    correct = np.random.default_rng(1).random((NUM_DOCUMENTS, 600)) < ACCURACY
    measured = simulated(correct)
    [values] = resampled([measured], ALONE)
    assert values.shape == (NUM_RESAMPLES + 1, 600)
    intervals = scores([*map(str, range(600))], values)
    assert [score.mean for score in intervals] == pytest.approx((100 * correct.mean(axis=0)).tolist())
    assert all(score.low is not None and score.high is not None for score in intervals)
    covering = [score.low <= 100 * ACCURACY <= score.high for score in intervals]
    assert 0.92 < np.mean(covering) < 0.97


def share_without_zero(units: list[str], measures: list[Shares]) -> float:
    """Returns the share of differences whose interval excludes zero."""
    first, second = resampled(measures, units)
    found = scores([*map(str, range(second.shape[1]))], second - first)
    assert all(score.low is not None and score.high is not None for score in found)
    return float(np.mean([score.sign != 0 for score in found]))


def test_groups_are_drawn_as_a_whole_so_that_no_difference_is_found_where_there_is_none() -> None:
    generator, num_groups, size = np.random.default_rng(5), 20, 10
    accuracies = generator.beta(6, 2, size=(2, num_groups, 400)).repeat(size, axis=1)  # they vary by group and arm
    measures = [simulated(generator.random(of_arm.shape) < of_arm) for of_arm in accuracies]
    groups = [f"group {number // size}" for number in range(num_groups * size)]
    assert share_without_zero(groups, measures) < 0.1
    assert share_without_zero([*map(str, range(len(groups)))], measures) > 0.15


def test_one_group_has_a_value_but_no_interval() -> None:
    measured = simulated(np.array([[True], [False]]))
    [values] = resampled([measured], ["author", "author"])
    [score] = scores(["accuracy"], averaged([values]))
    assert (score.mean, score.low, score.high) == (50, None, None)


def test_pairing_narrows_the_interval_of_a_difference() -> None:
    generator = np.random.default_rng(2)
    baseline = generator.random((NUM_DOCUMENTS, 1)) < ACCURACY
    better = baseline | (generator.random(baseline.shape) < 0.2)  # correct where the baseline is, and on some others
    unrelated = better[generator.permutation(NUM_DOCUMENTS)]
    measures = [simulated(table) for table in (baseline, better, unrelated)]
    first, second, third = resampled(measures, ALONE)
    paired, unpaired = (scores(["accuracy"], one - first)[0] for one in (second, third))
    assert paired.mean == unpaired.mean and paired.mean > 0
    widths = [(score.high or 0) - (score.low or 0) for score in (paired, unpaired)]
    assert 0 < widths[0] < 0.6 * widths[1]
    assert paired.low is not None and paired.low > 0


def test_the_same_data_give_the_same_interval() -> None:
    measured = simulated(np.random.default_rng(3).random((NUM_DOCUMENTS, 1)) < ACCURACY)
    (one,), (other,) = (resampled([measured], ALONE) for _ in range(2))
    assert (one == other).all()


def test_seeds_are_averaged_and_drawn_again() -> None:
    correct = np.random.default_rng(4).random((NUM_DOCUMENTS, 1)) < ACCURACY
    lucky = correct.copy()
    lucky[:30] = True
    measures = [simulated(correct), simulated(lucky)]
    values = resampled(measures, ALONE)
    both = averaged(values)
    assert both[0, 0] == pytest.approx((values[0][0, 0] + values[1][0, 0]) / 2)
    same = averaged([values[0], values[0]])
    assert np.allclose(same, values[0]) and np.allclose(averaged(values[:1]), values[0])
    assert both.std() > 1.05 * same.std()


@pytest.mark.parametrize("num_seeds", [2, 5])
def test_the_interval_of_a_mean_over_seeds_is_that_of_new_seeds(num_seeds: int) -> None:
    of_seeds = np.random.default_rng(5).normal(size=num_seeds)
    values = [np.full((NUM_RESAMPLES + 1, 1), value) for value in of_seeds]  # all documents alike
    drawn = averaged(values)[1:]
    assert drawn.mean() == pytest.approx(of_seeds.mean(), abs=0.1)
    assert drawn.std() == pytest.approx(of_seeds.std(ddof=1) / np.sqrt(num_seeds), rel=0.1)


def test_a_metric_that_is_not_defined_has_no_interval() -> None:
    nothing = Shares(np.zeros((4, 1)), np.zeros((4, 1)))
    [values] = resampled([nothing], [*"abcd"])
    [score] = scores(["recall"], averaged([values]))
    assert (score.mean, score.low, score.high) == (None, None, None)
    once = Shares(np.eye(4)[:, :1], np.eye(4)[:, :1])
    [score] = scores(["recall"], averaged(resampled([once], [*"abcd"])))
    assert (score.mean, score.low, score.high) == (100, None, None)
    ones = np.array([[1.0], [1.0], [0.0], [0.0]])
    [values] = resampled([Shares(ones, ones)], [*"abcd"])
    assert np.isnan(values).any()
    [score] = scores(["recall"], averaged([values, np.full_like(values, np.nan)]))
    assert (score.mean, score.low, score.high) == (100, 100, 100)
