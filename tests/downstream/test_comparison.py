"""Comparisons of arms: chosen values, means over seeds and folds, paired differences, costs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import chosen_values, compared
from longmlm.errors import ArtifactError
from tests.downstream.compared_arms import COST, comparison_of, labelling, task, trial


def shares(*percents: int, count: int = 100) -> list[list[int]]:
    """Returns for each share whether each of the documents is correct; a smaller share is within a larger one."""
    return [[int(number < percent * count // 100) for number in range(count)] for percent in percents]


def test_arms_are_sorted_by_the_main_metric_with_paired_differences() -> None:
    low, middle, high = shares(60, 70, 80)
    comparison = comparison_of({"base": low, "good": high, "fair": middle})
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
    low, high = shares(40, 90)
    trials = [trial("base", low, rate=1.0), trial("base", high, rate=2.0), trial("base", high, seed=2, rate=2.0)]
    assert chosen_values(trials) == {"rate": 2.0}
    [arm] = compared(task(["base"]), trials, {}).arms
    assert (arm.values, arm.seeds, arm.by_seed) == ({"rate": 2.0}, (1, 2), (90.0, 90.0))
    assert [(one.values, one.dev_score) for one in arm.searched] == [({"rate": 1.0}, 40.0), ({"rate": 2.0}, 90.0)]


def test_a_seed_is_measured_over_all_of_its_folds() -> None:
    folds = [trial("base", correct, fold=fold) for fold, correct in enumerate(([1] * 10, [0] * 30))]
    others = [trial("base", correct, seed=2, fold=fold) for fold, correct in enumerate(([1] * 10, [1] * 30))]
    [arm] = compared(task(["base"]), [*folds, *others], {}).arms
    assert arm.num_documents == 40
    assert arm.by_seed == (25, 100)
    assert arm.scores[0].mean == pytest.approx(62.5)
    assert arm.scores[0].low == pytest.approx(62.5 - 37.5 * math.sqrt(2), abs=15)
    assert arm.scores[0].high == pytest.approx(100)


def of_groups(one: DownstreamTrial, size: int) -> DownstreamTrial:
    """Returns the trial with so many documents per unit."""
    units = [f"author {number // size}" for number in range(len(one.predictions))]
    return replace(
        one, predictions=tuple(replace(each, unit=unit) for each, unit in zip(one.predictions, units, strict=True))
    )


def test_documents_of_a_group_count_as_one_in_the_interval() -> None:
    low, high = shares(60, 80)
    trials = [trial("base", low), trial("good", high)]
    widths = []
    for size in (1, 10):
        good = compared(task(["base", "good"]), [of_groups(one, size) for one in trials], {}).arms[0]
        assert good.differences[0].mean == pytest.approx(20)
        widths.append((good.differences[0].high or 0) - (good.differences[0].low or 0))
    assert widths[1] == pytest.approx(widths[0] * 10**0.5, rel=0.2)  # each group is all right or all wrong


def test_arms_with_another_truth_are_refused() -> None:
    base, other = trial("base", [1, 0, 1]), trial("other", [1, 1, 1])
    first, second, third = other.predictions
    changed = replace(other, predictions=(first, replace(second, labels=("no",)), third))
    with pytest.raises(
        ArtifactError, match=r"^trials of base and other differ .* of document .d0-001.: name another .*$"
    ):
        compared(task(["base", "other"]), [base, changed], {})


def test_a_baseline_that_failed_leaves_no_difference() -> None:
    comparison = compared(task(["base", "other"]), [trial("other", [1, 0])], {"base, seed 1": "out of memory"})
    assert comparison.arms[0].differences == ()
    assert comparison.failed == {"base, seed 1": "out of memory"}


def test_models_are_compared_with_tfidf() -> None:
    low, middle, high = shares(60, 70, 80)
    comparison = comparison_of({"base": low, "tfidf": middle, "good": high})
    over = {arm.arm: arm.over_tfidf and arm.over_tfidf.mean for arm in comparison.arms}
    assert over == {"base": pytest.approx(-10), "tfidf": None, "good": pytest.approx(10)}


def test_arms_are_compared_on_the_documents_that_all_of_them_predicted() -> None:
    first, second = [1] * 10 + [0] * 10, [1] * 20
    trials = [
        trial("base", first),
        trial("other", first),
        trial("other", second, fold=1),
        trial("other", second, seed=2),
    ]
    comparison = compared(task(["base", "other"]), trials, {})
    assert {(arm.arm, arm.num_documents, arm.seeds) for arm in comparison.arms} == {
        ("base", 20, (1,)),
        ("other", 20, (1,)),
    }
    other = next(arm for arm in comparison.arms if arm.arm == "other")
    assert (other.scores[0].mean, other.differences[0].mean, other.differences[0].low) == (50, 0, 0)
    assert comparison.num_left_out == 40  # those of fold 1, and those of seed 2


def test_spans_are_scored_as_entities() -> None:
    comparison = labelling(truncate=(0, 1), whole=(0, 2, 3))
    whole, truncate = comparison.arms
    assert (whole.arm, truncate.arm, comparison.metric) == ("whole", "truncate", "entity F1")
    assert whole.scores[0].mean == pytest.approx(100 * 2 * 3 / 7)
    assert [score.metric for score in whole.scores] == ["entity F1", "precision", "recall", "macro-F1"]
    assert (whole.scores[1].mean, truncate.scores[2].mean) == (100, 50)


def test_costs_are_averaged_and_memory_is_the_highest() -> None:
    one = replace(trial("base", [1, 0]), num_untested=3)
    other = replace(one, seed=2, cost=replace(COST, train_seconds=30.0, peak_memory_bytes=2 * 10**9))
    comparison = compared(task(["base"]), [one, other], {})
    assert comparison.arms[0].cost == replace(COST, train_seconds=20.0, peak_memory_bytes=2 * 10**9)
    assert comparison.num_untested == 3, "of each seed"


def test_the_file_holds_all_of_it(tmp_path: Path) -> None:
    for comparison in (labelling(base=(1,)), comparison_of({"base": [1, 0]}, {"x": "y"})):
        artifact.write(tmp_path / "downstream.json", comparison)
        assert artifact.read(DownstreamComparison, tmp_path / "downstream.json") == comparison
