"""Comparisons of arms: chosen values, means over seeds and folds, paired differences, costs."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import DownstreamComparison, DownstreamTrial, LabelledSpan, Prediction
from longmlm.errors import ArtifactError
from longmlm.reports.downstream_finding import finding
from longmlm.scoring.compared import chosen_values, compared, mean_cost
from tests.support.compared_arms import comparison_of, cost, explanation, labelled_prediction, labelling, task, trial


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
    assert good.num_unpaired == 0 and good.num_documents == 100


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


def test_documents_of_one_arm_are_left_out_of_the_difference_and_counted() -> None:
    first, second = [1] * 10 + [0] * 10, [1] * 20
    trials = [
        trial("base", first),
        trial("other", first),
        trial("other", second, fold=1),
        trial("other", second, seed=2),
    ]
    other = next(arm for arm in compared(task(["base", "other"]), trials, {}).arms if arm.arm == "other")
    assert other.num_documents == 40
    assert other.num_unpaired == 40  # those of fold 1, and those of seed 2
    assert (other.differences[0].mean, other.differences[0].low) == (0, 0)


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
    scored = [
        replace(one, predictions=(replace(one.predictions[0], score=at),)) for at, one in ((1.0, base), (2.0, other))
    ]
    with pytest.raises(ArtifactError, match="'d0-000'"):
        compared(task(["base", "other"], kind="similarity"), scored, {})


def test_a_baseline_that_failed_leaves_no_difference() -> None:
    comparison = compared(task(["base", "other"]), [trial("other", [1, 0])], {"base, seed 1": "out of memory"})
    assert comparison.arms[0].differences == ()
    assert comparison.failed == {"base, seed 1": "out of memory"}


def test_models_are_compared_with_tfidf() -> None:
    low, middle, high = shares(60, 70, 80)
    comparison = comparison_of({"base": low, "tfidf": middle, "good": high})
    over = {arm.arm: arm.over_tfidf and arm.over_tfidf.mean for arm in comparison.arms}
    assert over == {"base": pytest.approx(-10), "tfidf": None, "good": pytest.approx(10)}


def test_entities_are_measured_by_where_they_begin() -> None:
    whole, truncate = labelling().arms
    assert (whole.arm, truncate.arm) == ("whole", "truncate")
    assert whole.scores[0].mean == pytest.approx(100 * 2 * 3 / 7)
    positions = {arm.arm: {score.metric: score.mean for score in arm.by_position} for arm in (whole, truncate)}
    assert positions["truncate"]["0–511"] == 100 and positions["truncate"]["512–1023"] == 0
    assert positions["whole"]["512–1023"] == 100
    assert positions["whole"]["1024–1535"] is None
    beyond = {score.metric: score.mean for score in truncate.scores}["recall beyond token 512"]
    assert beyond == 0


def test_the_input_of_the_baseline_says_where_positions_are() -> None:
    comparison = labelling(384, 128)
    assert comparison.length == 384
    whole, truncate = comparison.arms
    assert [score.metric for score in whole.by_position][:2] == ["0–383", "384–767"]
    assert {score.metric: score.mean for score in whole.scores}["recall beyond token 384"] == pytest.approx(200 / 3)
    cuts = {score.metric: score.mean for score in truncate.by_cut if score.mean is not None}
    assert cuts == {"0–15": 100, "256–511": 100}, "entities that are not read are left out"
    assert all(score.mean is None for score in whole.by_cut), "its input is not cut"


def test_entities_beyond_a_token_are_the_same_for_every_tokenizer() -> None:
    base, other = (labelled_prediction(0, (0, 1, 2, 3)) for _ in range(2))
    finer = replace(other, token_starts=tuple(2 * token for token in other.token_starts), num_tokens=2000)
    trials = [
        replace(trial(arm, [1]), predictions=(one,), length=510) for arm, one in (("base", base), ("finer", finer))
    ]
    facts = task(["base", "finer"], kind="labelling", labels=("PER",))
    arms = compared(facts, trials, {}).arms
    measured = [{score.metric: score.mean for score in arm.scores}["recall beyond token 510"] for arm in arms]
    assert measured == [100, 100]
    [arm] = [arm for arm in arms if arm.arm == "finer"]
    assert {score.metric: score.mean for score in arm.by_position if score.mean is not None} == {
        "0–509": 100,
        "510–1019": 100,
    }
    shifted = tuple(LabelledSpan(span.start + 1, span.end, "PER") for span in finer.spans)  # no true span begins there
    wrong = replace(finer, predicted_spans=shifted)
    arms = compared(facts, [trials[0], replace(trials[1], predictions=(wrong,))], {}).arms
    [arm] = [arm for arm in arms if arm.arm == "finer"]
    assert {score.metric: score.mean for score in arm.by_position if score.mean is not None} == {
        "0–509": 0,
        "510–1019": 0,
    }


def test_costs_are_averaged_and_memory_is_the_highest() -> None:
    mean = mean_cost([cost(1000.0, 5), cost(3000.0, 9), cost(None, 7)])
    assert (mean.train_tokens_per_second, mean.peak_memory_bytes, mean.inference_memory_bytes) == (2000, 9, None)
    on_gpu = mean_cost([replace(cost(), inference_memory_bytes=size) for size in (3, 4)])
    assert on_gpu.inference_memory_bytes == 4
    assert mean_cost([cost(None)]).train_tokens_per_second is None
    untimed = replace(cost(), documents_per_second=None)
    assert mean_cost([cost(), untimed]).documents_per_second == cost().documents_per_second
    assert mean_cost([untimed]).documents_per_second is None


def test_the_file_holds_all_of_it(tmp_path: Path) -> None:
    explained = replace(trial("base", [1, 0]), explanations=(explanation(20.0, -1.0),))
    for comparison in (labelling(), compared(task(["base"]), [explained], {"x": "y"})):
        artifact.write(tmp_path / "downstream.json", comparison)
        assert artifact.read(DownstreamComparison, tmp_path / "downstream.json") == comparison
    assert comparison.arms[0].explanations == explained.explanations


def test_similarity_is_a_correlation() -> None:
    generator = np.random.default_rng(8)
    scores = generator.random(50)
    trials = []
    for arm, noise in (("base", 1.0), ("good", 0.1)):
        guesses = scores + noise * generator.standard_normal(50)
        blank = trial(arm, [1] * 50)
        pairs = zip(blank.predictions, scores.tolist(), guesses.tolist(), strict=True)
        scored = tuple(replace(one, labels=(), predicted=(), score=a, predicted_score=b) for one, a, b in pairs)
        trials.append(replace(blank, predictions=scored))
    best, base = compared(task(["base", "good"], kind="similarity", labels=()), trials, {}).arms
    assert (best.arm, best.scores[0].metric) == ("good", "Spearman")
    assert (best.scores[0].mean or 0) > 85 > (base.scores[0].mean or 0)
    assert (best.differences[0].low or 0) > 0


def test_a_seed_without_a_correlation_counts_as_zero_in_scores_and_differences() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random(40)

    def similarity(arm: str, seed: int, predicted: np.ndarray) -> DownstreamTrial:
        pairs = zip(truth.tolist(), predicted.tolist(), strict=True)
        predictions = tuple(
            Prediction(document=f"pair-{number}", num_tokens=20, score=score, predicted_score=guess)
            for number, (score, guess) in enumerate(pairs)
        )
        return replace(trial(arm, [1], seed=seed), predictions=predictions)

    good, constant = truth + 0.01 * generator.random(40), np.full(40, 0.5)
    trials = [similarity("base", 1, good), similarity("base", 2, good)]
    trials += [similarity("other", 1, good), similarity("other", 2, constant)]
    base, other = compared(task(["base", "other"], kind="similarity", labels=()), trials, {}).arms
    assert other.by_seed[1] == 0 and other.scores[0].mean == pytest.approx(sum(other.by_seed) / 2)
    [difference] = other.differences
    assert difference.mean == pytest.approx((other.scores[0].mean or 0) - (base.scores[0].mean or 0))
    assert other.constant is None
    collapsed = [*trials[:2], similarity("other", 1, constant), similarity("other", 2, constant)]
    result = compared(task(["base", "other"], kind="similarity", labels=()), collapsed, {})
    assert [arm.constant for arm in result.arms] == [None, ()]
    assert "; other predicts one score for all pairs: it learned nothing" in finding(result)
