"""Comparisons of arms: chosen values, means over seeds and folds, paired differences."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import chosen_values, compared
from tests.downstream.compared_arms import comparison_of, failed_trial, labelling, task, trial

LOW, MIDDLE, HIGH = ([int(number < share) for number in range(100)] for share in (60, 70, 80))


def test_arms_are_sorted_by_the_main_metric_with_paired_differences() -> None:
    comparison = comparison_of({"base": LOW, "good": HIGH, "fair": MIDDLE})
    assert [arm.arm for arm in comparison.arms] == ["good", "fair", "base"]
    assert [arm.scores[0].mean for arm in comparison.arms] == [80, 70, 60]
    good, _, base = comparison.arms
    assert base.differences == ()
    [difference, macro] = good.differences
    assert (difference.metric, macro.metric) == ("accuracy", "macro-F1")
    assert difference.mean == pytest.approx(20)
    assert 10 < (difference.low or 0) < 14 and 26 < (difference.high or 0) < 30  # 20 of 100 documents, ± 1.96 * 4
    assert good.num_documents == 100 and comparison.num_left_out == 0


def test_the_trials_of_the_best_values_count() -> None:
    trials = [trial("base", LOW, rate=1.0), trial("base", HIGH, rate=2.0), trial("base", HIGH, seed=2, rate=2.0)]
    assert chosen_values(trials) == {"rate": 2.0}
    [arm] = compared(task(["base"]), [replace(one, num_untested=3) for one in trials], []).arms
    assert (arm.values, arm.seeds, arm.scores[0].mean) == ({"rate": 2.0}, (1, 2), 80.0)


def test_a_seed_is_measured_over_all_of_its_folds() -> None:
    folds = [trial("base", correct, fold=fold) for fold, correct in enumerate(([1] * 10, [0] * 30))]
    others = [trial("base", correct, seed=2, fold=fold) for fold, correct in enumerate(([1] * 10, [1] * 30))]
    comparison = compared(task(["base"]), [replace(one, num_untested=3) for one in (*folds, *others)], [])
    [arm] = comparison.arms
    assert arm.num_documents == 40 and comparison.num_untested == 6, "of each seed"
    assert arm.scores[0].mean == pytest.approx((25 + 100) / 2)
    assert arm.scores[0].low == pytest.approx(62.5 - 37.5 * math.sqrt(2), abs=15)
    assert arm.scores[0].high == pytest.approx(100)


def of_groups(one: DownstreamTrial, size: int) -> DownstreamTrial:
    """Returns the trial with so many documents per unit."""
    numbered = enumerate(one.predictions)
    return replace(one, predictions=tuple(replace(each, unit=f"author {number // size}") for number, each in numbered))


def test_documents_of_a_group_count_as_one_in_the_interval() -> None:
    widths = []
    for size in (1, 10):
        trials = [of_groups(one, size) for one in (trial("base", LOW), trial("good", HIGH))]
        good = compared(task(["base", "good"]), trials, []).arms[0]
        assert good.differences[0].mean == pytest.approx(20)
        widths.append((good.differences[0].high or 0) - (good.differences[0].low or 0))
    assert widths[1] == pytest.approx(widths[0] * 10**0.5, rel=0.2)  # each group is all right or all wrong


def test_a_baseline_that_failed_leaves_no_difference() -> None:
    comparison = compared(task(["base", "other"]), [trial("other", [1, 0])], [failed_trial("base")])
    assert comparison.arms[0].differences == () and comparison.arms_without_result == ["base"]


def test_models_are_compared_with_tfidf() -> None:
    comparison = comparison_of({"base": LOW, "tfidf": MIDDLE, "good": HIGH})
    over = {arm.arm: arm.over_tfidf and arm.over_tfidf.mean for arm in comparison.arms}
    assert over == {"base": pytest.approx(-10), "tfidf": None, "good": pytest.approx(10)}


def test_arms_are_compared_on_the_documents_that_all_of_them_predicted() -> None:
    first, second = [1] * 10 + [0] * 10, [1] * 20
    trials = [trial("base", first), trial("other", first)]
    trials += [trial("other", second, fold=1), trial("other", second, seed=2)]
    comparison = compared(task(["base", "other"]), trials, [])
    assert [(arm.arm, arm.num_documents, arm.seeds) for arm in comparison.arms] == [
        ("base", 20, (1,)),
        ("other", 20, (1,)),
    ]
    other = comparison.arms[1]
    assert (other.scores[0].mean, other.differences[0].mean, other.differences[0].low) == (50, 0, 0)
    assert comparison.num_left_out == 40  # those of fold 1, and those of seed 2


def test_spans_are_scored_as_entities() -> None:
    comparison = labelling(truncate=(0, 1), whole=(0, 2, 3))
    whole, truncate = comparison.arms
    assert (whole.arm, truncate.arm, comparison.metric) == ("whole", "truncate", "entity F1")
    assert whole.scores[0].mean == pytest.approx(100 * 2 * 3 / 7)
    assert [score.metric for score in whole.scores] == ["entity F1", "precision", "recall", "macro-F1"]
    assert (whole.scores[1].mean, truncate.scores[2].mean) == (100, 50)


def test_the_file_holds_all_of_it(tmp_path: Path) -> None:
    for comparison in (labelling(base=(1,)), comparison_of({"base": [1, 0]}, failed_trial("base"))):
        artifact.write(tmp_path / "downstream.json", comparison)
        assert artifact.read(DownstreamComparison, tmp_path / "downstream.json") == comparison
