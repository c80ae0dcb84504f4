"""The page of a comparison of arms, and its finding in one sentence."""

import re
from collections.abc import Sequence
from dataclasses import replace

from longmlm.downstream.artifacts import DownstreamComparison
from longmlm.downstream.comparison import compared
from longmlm.downstream.page import downstream_page, finding
from longmlm.downstream.settings import Arm
from tests.downstream.compared_arms import CLEAR, UNCLEAR, comparison_of, labelling, task, trial


def constant(arms: Sequence[str], label: str = "no") -> DownstreamComparison:
    """Returns the comparison of arms that predict one label for every document."""
    trials = [trial(arm, [0, 1] * 20) for arm in arms]
    same = [
        replace(one, predictions=tuple(replace(each, predicted=(label,)) for each in one.predictions)) for one in trials
    ]
    return compared(task([*arms, "other"]), same, {})


def test_a_clear_difference_is_found() -> None:
    text = finding(comparison_of(CLEAR))
    start, _, interval = text.partition(", 95 % interval ")
    assert start == "long is better than base: accuracy 80.00 % and 60.00 %, +20.00 points"
    assert re.fullmatch(r"\+1\d\.\d\d to \+2\d\.\d\d", interval)
    swapped = finding(comparison_of({"base": CLEAR["long"], "short": CLEAR["base"]}))
    assert swapped.startswith(
        "base is better than short: accuracy 80.00 % and 60.00 %, +20.00 points, 95 % interval +1"
    )


def test_an_unclear_difference_is_not_found() -> None:
    text = finding(comparison_of(UNCLEAR))
    assert re.fullmatch(
        r"no difference found between long and base: accuracy \+2\.00 points, 95 % interval −\d\.\d\d to \+\d\.\d\d "
        r"\(long minus base\)",
        text,
    )
    worse = finding(comparison_of({"base": UNCLEAR["long"], "short": UNCLEAR["base"]}))
    assert worse.startswith("no difference found between short and base: accuracy −2.00 points, 95 % interval −")


def test_models_that_are_not_better_than_tfidf_are_named() -> None:
    arms = {**CLEAR, "tfidf": [1] * 79 + [0] * 21}
    assert finding(comparison_of(arms)).endswith("; not shown to be better than TF-IDF: long, base")
    assert "TF-IDF" not in finding(comparison_of({**arms, "tfidf": [0] * 10 + [1] * 40 + [0] * 50}))


def test_an_arm_without_a_rival_is_stated() -> None:
    alone = comparison_of({"base": CLEAR["base"]})
    assert re.fullmatch(
        r"base: accuracy 60\.00 %, 95 % interval 5\d\.\d\d to 6\d\.\d\d, no other arm to compare with", finding(alone)
    )
    failed = compared(task(["base", "long"]), [trial("long", CLEAR["long"])], {"base": "out of memory"})
    assert "the baseline base has no result" in finding(failed)
    assert "Differences from" not in downstream_page(failed, "")


def test_failed_trials_and_arms_without_a_result_come_first() -> None:
    failed = {"base, seed 1": "no space", "long, rate 0.1, seed 1": "no space", "long, rate 0.2, seed 1": "no space"}
    comparison = compared(task(["base", "long", "tfidf"]), [trial("tfidf", CLEAR["long"])], failed)
    assert finding(comparison).startswith("3 of 4 trials failed, no result of base and long; tfidf: accuracy 80")
    page = downstream_page(comparison, "")
    assert '<p class="verdict bad">' in page and "comparison of 1 arm<" in page
    assert finding(comparison_of(CLEAR, {"long, seed 2": "no space"})).startswith(
        "1 of 3 trials failed; long is better"
    )


def test_arms_that_learned_nothing_are_no_finding() -> None:
    text = "every arm predicts only 'no': nothing was learned; raise num_epochs or try another learning_rate"
    assert finding(constant(["base", "long"])) == text
    frozen = constant(["base", "long"])
    arms = {name: replace(arm, frozen=True) for name, arm in frozen.task.arms.items()}
    assert "raise frozen_num_epochs or try another frozen_learning_rate" in finding(
        replace(frozen, task=replace(frozen.task, arms=arms))
    )
    one = [trial("base", [1, 0, 1, 1] * 20), *([trial("long", [1, 0] * 40)])]  # the second predicts only "no"
    assert "; long predicts only 'no': it learned nothing" in finding(compared(task(["base", "long"]), one, {}))
    unread = labelling(whole=(0, 2, 3), truncate=(0, 1))
    arms_without = [replace(arm, scores=(replace(arm.scores[0], mean=0.0), *arm.scores[1:])) for arm in unread.arms]
    assert finding(replace(unread, arms=tuple(arms_without))).startswith(
        "every arm finds no span: nothing was learned; raise num_"
    )
    assert "; truncate finds no span: it learned nothing" in finding(
        replace(unread, arms=(unread.arms[0], arms_without[1]))
    )


def test_several_comparisons_are_mentioned_in_the_finding() -> None:
    assert "not corrected" not in finding(comparison_of(CLEAR))
    text = finding(comparison_of({**CLEAR, "third": UNCLEAR["long"]}))
    assert text.startswith("long is better than base: ") and text.endswith(" (not corrected for 2 comparisons)")


def test_models_are_compared_with_the_best_tfidf_whatever_its_place_among_the_arms() -> None:
    low, middle, high = ([1] * count + [0] * (100 - count) for count in (10, 50, 90))
    for names in (("base", "tfidf", "tfidf-20"), ("tfidf-20", "base", "tfidf")):
        arms = {name: {"base": middle, "tfidf": high, "tfidf-20": low}[name] for name in names}
        settings = {name: Arm(model="owner/base" if name == "base" else None) for name in names}
        trials = [trial(arm, correct) for arm, correct in arms.items()]
        facts = replace(task(["base"]), arms=settings)
        comparison = compared(facts, trials, {})
        assert finding(comparison).endswith("; not shown to be better than TF-IDF (tfidf): base")


def test_a_difference_without_an_interval_is_called_neither_a_difference_nor_none() -> None:
    trials = [trial(arm, correct) for arm, correct in CLEAR.items()]
    one_group = [
        replace(one, predictions=tuple(replace(each, unit="author") for each in one.predictions)) for one in trials
    ]
    comparison = compared(task([*CLEAR]), one_group, {})
    assert finding(comparison) == (
        "accuracy +20.00 points (long minus base), without an interval: the documents tested on are copies or one group"
    )
    assert "no difference found" not in downstream_page(comparison, "")
    assert "TF-IDF" not in finding(
        compared(task(["base", "tfidf"]), [replace(one_group[0], arm="tfidf"), one_group[0]], {})
    )


def test_documents_that_an_arm_did_not_predict_are_counted() -> None:
    trials = [trial("base", CLEAR["base"]), trial("long", CLEAR["long"]), trial("long", CLEAR["long"], fold=1)]
    text = finding(compared(task(["base", "long"]), trials, {"base, seed 1, fold 1": "no space"}))
    assert text.endswith("; 100 documents left out, for which an arm has no prediction with some seed")


def test_the_page_shows_every_arm_with_scores_differences_and_settings() -> None:
    page = downstream_page(comparison_of({**CLEAR, "tfidf": UNCLEAR["long"]}), "longmlm downstream task.toml")
    assert all(name in page for name in ("long", "base", "tfidf", "TF-IDF", "owner/long", "80.00", "95 % low"))
    titles = ("Arms", "Accuracy of each arm", "Differences from base", "Cost", "By label", "By seed", "Settings")
    assert all(f"<h2>{title}</h2>" in page for title in (*titles, "Search", "Documents")), page[:2000]
    assert "Not corrected for 2 comparisons." in page and "no difference found" in page
    alone = downstream_page(labelling(whole=(0,)), "")
    assert "Differences from" not in alone and "Failed trials" not in alone
