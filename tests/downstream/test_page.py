"""The page of a comparison of arms, and its finding in one sentence."""

import re
from dataclasses import replace

import pytest

from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.downstream.comparison import compared, finding
from longmlm.downstream.page import downstream_page
from longmlm.downstream.settings import Arm
from tests.downstream.compared_arms import CLEAR, UNCLEAR, comparison_of, failed_trial, labelling, task, trial


def constant(*arms: str) -> DownstreamComparison:
    """Returns the comparison of arms that predict one label for every document."""
    return compared(task([*arms, "other"]), [changed(trial(arm, [0, 1] * 20), predicted=("no",)) for arm in arms], [])


def changed(one: DownstreamTrial, **values: object) -> DownstreamTrial:
    """Returns the trial with other values in every prediction."""
    return replace(one, predictions=tuple(replace(each, **values) for each in one.predictions))


def test_a_clear_difference_is_found() -> None:
    start, _, interval = finding(comparison_of(CLEAR)).partition(", 95 % interval ")
    assert start == "long is better than base: accuracy 80.00 % and 60.00 %, +20.00 points"
    assert re.fullmatch(r"\+1\d\.\d\d to \+2\d\.\d\d", interval)
    swapped = finding(comparison_of({"base": CLEAR["long"], "short": CLEAR["base"]}))
    text = "base is better than short: accuracy 80.00 % and 60.00 %, +20.00 points, 95 % interval +1"
    assert swapped.startswith(text)
    several = finding(comparison_of({**CLEAR, "third": UNCLEAR["long"]}))
    assert several.startswith("long is better than base: ")
    assert several.endswith(" (not corrected for 2 comparisons)")


def test_an_unclear_difference_is_not_found() -> None:
    assert re.fullmatch(
        r"no difference found between long and base: accuracy \+2\.00 points, 95 % interval −\d\.\d\d to \+\d\.\d\d "
        r"\(long minus base\)",
        finding(comparison_of(UNCLEAR)),
    )
    worse = finding(comparison_of({"base": UNCLEAR["long"], "short": UNCLEAR["base"]}))
    assert worse.startswith("no difference found between short and base: accuracy −2.00 points, 95 % interval −")


def test_models_that_are_not_better_than_tfidf_are_named() -> None:
    arms = {**CLEAR, "tfidf": [1] * 79 + [0] * 21}
    assert finding(comparison_of(arms)).endswith("; not shown to be better than TF-IDF: long, base")
    assert "TF-IDF" not in finding(comparison_of({**arms, "tfidf": [0] * 10 + [1] * 40 + [0] * 50}))


@pytest.mark.parametrize("names", [("base", "tfidf", "tfidf-20"), ("tfidf-20", "base", "tfidf")])
def test_models_are_compared_with_the_best_tfidf_whatever_its_place_among_the_arms(names: tuple[str, ...]) -> None:
    correct = {"tfidf-20": 10, "base": 50, "tfidf": 90}
    trials = [trial(name, [1] * correct[name] + [0] * (100 - correct[name])) for name in names]
    settings = {name: Arm(model="owner/base" if name == "base" else None) for name in names}
    text = finding(compared(replace(task(["base"]), arms=settings), trials, []))
    assert text.endswith("; not shown to be better than TF-IDF (tfidf): base")


def test_an_arm_without_a_rival_is_stated() -> None:
    alone = finding(comparison_of({"base": CLEAR["base"]}))
    assert re.fullmatch(
        r"base: accuracy 60\.00 %, 95 % interval 5\d\.\d\d to 6\d\.\d\d, no other arm to compare with", alone
    )
    failed = compared(task(["base", "long"]), [trial("long", CLEAR["long"])], [failed_trial("base")])
    assert "the baseline base has no result" in finding(failed)


def test_arms_that_learned_nothing_are_no_finding() -> None:
    text = "every arm predicts only 'no': nothing was learned; raise num_epochs or try another learning_rate"
    nothing = constant("base", "long")
    assert finding(nothing) == text
    arms = {name: replace(arm, frozen=True) for name, arm in nothing.task.arms.items()}
    frozen = finding(replace(nothing, task=replace(nothing.task, arms=arms)))
    assert "raise frozen_num_epochs or try another frozen_learning_rate" in frozen
    one = [trial("base", [1, 0, 1, 1] * 20), *([trial("long", [1, 0] * 40)])]  # the second predicts only "no"
    assert "; long predicts only 'no': it learned nothing" in finding(compared(task(["base", "long"]), one, []))
    found = labelling(whole=(0, 2, 3), truncate=())
    assert "; truncate finds no span: it learned nothing" in finding(found)
    assert finding(labelling(whole=(), truncate=())).startswith("every arm finds no span: nothing was learned; raise ")


def test_a_difference_without_an_interval_is_called_neither_a_difference_nor_none() -> None:
    trials = [changed(trial(arm, correct), unit="author") for arm, correct in CLEAR.items()]
    assert finding(compared(task([*CLEAR]), trials, [])) == (
        "accuracy +20.00 points (long minus base), without an interval: the documents tested on are copies or one group"
    )
    tfidf = compared(task(["base", "tfidf"]), [replace(trials[0], arm="tfidf"), trials[0]], [])
    assert "TF-IDF" not in finding(tfidf)
    assert "no difference found" not in downstream_page(tfidf, "")


def test_documents_that_an_arm_did_not_predict_are_counted() -> None:
    trials = [trial("base", CLEAR["base"]), trial("long", CLEAR["long"]), trial("long", CLEAR["long"], fold=1)]
    text = finding(compared(task(["base", "long"]), trials, [failed_trial("base", fold=1)]))
    assert text.startswith("1 of 4 trials failed; long is better")
    assert text.endswith("; 100 documents left out, for which an arm has no prediction with some seed")


def test_failed_trials_and_arms_without_a_result_come_first() -> None:
    failed = [failed_trial("base"), *(failed_trial("long", values={"rate": rate}) for rate in (0.1, 0.2))]
    comparison = compared(task(["base", "long", "tfidf"]), [trial("tfidf", CLEAR["long"])], failed)
    assert finding(comparison).startswith("3 of 4 trials failed, no result of base and long; tfidf: accuracy 80")
    page = downstream_page(comparison, "")
    assert '<p class="verdict bad">' in page and "comparison of 1 arm<" in page
    assert "<h2>Failed trials</h2>" in page and "long, rate 0.1, seed 1" in page


def test_the_page_shows_every_arm_with_scores_differences_and_settings() -> None:
    page = downstream_page(comparison_of({**CLEAR, "tfidf": UNCLEAR["long"]}), "longmlm downstream task.toml")
    assert all(name in page for name in ("long", "base", "tfidf", "80.00", "95 % low", "7 records set aside"))
    titles = ("Arms", "accuracy of each arm", "By label")
    assert re.findall("<h2>(.*)</h2>", page) == [*titles, "Reproduce this page"]
    assert "Not corrected for 2 comparisons." in page and "no difference was found" in page
