"""The report of a comparison: its tables in numbers, its charts and its page."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import Accuracy, Difference, Measured
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.artifacts.provenance import Distilled
from longmlm.compare.comparison import Arm, Comparison, MeasuredTrial
from longmlm.compare.page import (
    BLOCKS_PICTURE,
    RECOVERY_PICTURE,
    arms_table,
    blocks_chart,
    blocks_table,
    comparison_page,
    context_table,
    finding,
    recovery_chart,
    trials_table,
    write_comparison,
)
from longmlm.experiments.experiment import FailedTrial
from tests.support.foreign import HOSTILE, PLAIN, page_structure, with_text


def measured(correct: int) -> Measured:
    """Returns an evaluation of 4 rows with 25 selected tokens each, of which `correct` + 0, 1, 2, 3 are predicted."""
    counts = tuple(correct + more for more in range(4))
    whole = Accuracy(float(sum(counts)), 1.0, 3.0, 100)
    return Measured(whole, (whole, Accuracy(None, None, None, 0)), (), (25,) * 4, counts)


def trial(arm: str, seed: int, *correct: int, **views: int) -> MeasuredTrial:
    curve = tuple(
        EvaluationMetrics(
            step=index,
            tokens=500_000 * index,
            held_out=(held_out := measured(count)),
            base_chunks=36.0,
            recovery=Difference(held_out.whole.accuracy - 36.0, 0.75),
        )
        for index, count in enumerate(correct)
    )
    return MeasuredTrial(
        arm=arm, seed=seed, values={"pretrain.recipe.learning_rate": 4e-4}, curve=curve, measured=views
    )


@pytest.fixture
def comparison() -> Comparison:
    trials = (
        trial("plain", 1, 2, 5, 7),
        trial("better", 1, 5, 8, 8),
        trial("plain", 2, 2, 5, 7),
        trial("better", 2, 5, 8, 9),
    )
    return Comparison(model="owner/base", row_length=64, baseline="plain", trials=trials)


def test_arms_are_listed_with_differences_and_recovery(comparison: Comparison) -> None:
    table = arms_table(comparison)
    assert table.header == [
        "arm",
        "searched values",
        "before (%)",
        "after (%, ± SD)",
        "difference to baseline (± SE)",
        "M tokens to recovery",
    ]
    assert [line[:4] for line in table.lines] == [
        ["better", "learning_rate 0.0004", "26.00", "40.00 ± 2.83"],
        ["plain", "learning_rate 0.0004", "14.00", "34.00 ± 0.00"],
    ]
    assert [line[4:] for line in table.lines] == [["+6.00 ± 2.00", "0.50"], ["–", "–"]]


def test_a_few_seeds_make_nothing_certain(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arm, "probability_over", lambda *_: 0.9999)
    assert finding(comparison).endswith("(probability that it is better: > 99 %)")


def test_the_finding_is_one_sentence(comparison: Comparison) -> None:
    text = "better ranks first by tokens to recovery: recovered after 0.50 M tokens (4.00 ± 0.75 points "
    text += "above base_chunks), plain has not recovered (2.00 ± 0.75 points below base_chunks); after "
    text += "training 40.00 %, plain 34.00 %, +6.00 ± 2.00 points (probability that it is better: 90 %)"
    assert finding(comparison) == text
    single = replace(comparison, trials=(trial("plain", 1, 2, 5, 7), trial("better", 1, 5, 5, 9)))
    text = "better ranks first by accuracy after training: after training 42.00 %, plain 34.00 %, +8.00 ± 0.00 points "
    text += "(standard error over held-out rows; training noise not included)"
    assert finding(single) == text
    alone = Comparison(model="m", row_length=64, baseline="plain", trials=comparison.trials[:1])
    assert finding(alone) == "plain: 34.00 % after training, 14.00 % before"


def test_the_finding_compares_the_seeds_that_both_have(comparison: Comparison) -> None:
    text = finding(replace(comparison, trials=(*comparison.trials[:2], comparison.trials[3])))
    assert "; with the seed that both have, after training 38.00 %, plain 34.00 %, +4.00 ± 0.00 points (stand" in text


def test_the_finding_states_both_numbers_where_they_disagree(comparison: Comparison) -> None:
    early, high = trial("better", 1, 2, 8, 8), trial("plain", 1, 2, 5, 15)
    text = finding(replace(comparison, trials=(high, early)))
    assert text.startswith(
        "better ranks first by tokens to recovery: recovered after 0.50 M tokens (2.00 ± 0.75 points"
    )
    assert "plain has not recovered (30.00 ± 0.75 points above base_chunks); " in text
    assert "after training 38.00 %, plain 66.00 %, −28.00 ± 0.00 points (standard error" in text


def test_the_finding_says_how_far_an_arm_is_from_base_chunks_and_within_what_error(comparison: Comparison) -> None:
    high, low = trial("better", 1, 2, 8, 10), trial("plain", 1, 2, 5, 7)
    text = finding(replace(comparison, trials=(high, low)))
    assert (
        "recovered after 0.50 M tokens (10.00 ± 0.75 points above base_chunks), plain has not recovered (2.00 ± "
        in text
    )
    last = replace(low.curve[-1], recovery=Difference(-2.0, 1.25))
    text = finding(replace(comparison, trials=(high, replace(low, curve=(*low.curve[:-1], last)))))
    assert "(2.00 ± 1.25 points below base_chunks, which may be chance); " in text
    sides = [replace(one, curve=tuple(replace(line, recovery=None) for line in one.curve)) for one in (high, low)]
    assert "base_chunks" not in finding(replace(comparison, trials=tuple(sides)))


def test_the_finding_names_what_decided(comparison: Comparison) -> None:
    together = (trial("plain", 1, 2, 8, 8), trial("better", 1, 5, 8, 9))
    assert finding(replace(comparison, trials=together)).startswith("better ranks first by accuracy after training: ")
    late, early = trial("better", 1, 2, 5, 8, 8), trial("plain", 1, 2, 8, 8, 8)
    failed = FailedTrial(arm="plain", seed=2, values=early.values, reason="error: no")
    text = finding(replace(comparison, trials=(early, late), failed=(failed,)))
    assert text.startswith("better ranks first because a trial of plain failed: recovered after 1.00 M tokens (2.00")


def test_the_finding_says_if_the_arms_were_trained_on_different_numbers_of_tokens(comparison: Comparison) -> None:
    longer = trial("better", 1, 5, 8, 8, 9)
    text = finding(replace(comparison, trials=(comparison.trials[0], longer)))
    assert "; after training on 1.50 M tokens 42.00 %, plain on 1.00 M tokens 34.00 %, +8.00" in text
    assert " on " not in finding(comparison)


def test_the_finding_says_if_the_arms_have_other_held_out_rows(comparison: Comparison) -> None:
    other = replace(trial("longer", 1, 5, 8, 9), rows_sha256="x")
    text = finding(replace(comparison, trials=(comparison.trials[0], other)))
    assert text.endswith("plain 34.00 % (these accuracies cannot be compared, since held-out rows or masks differ)")
    assert "differ" not in finding(comparison)


def test_arms_with_other_rows_and_failed_trials_are_named(comparison: Comparison) -> None:
    same = comparison_page(comparison, "")
    assert "on rows of 64 tokens. All arms have the same rows and, on held-out rows, the same masks." in same
    assert "Failed trials" not in same
    other = replace(trial("longer", 1, 5, 8, 8), rows_sha256="x")
    failed = FailedTrial(arm="wild", seed=1, reason="error: the loss is not finite")
    changed = replace(comparison, trials=(*comparison.trials, other), failed=(failed,))
    text = comparison_page(changed, "")
    assert "differ from those of plain for longer: they are not paired" in text
    assert "All arms have the same rows" not in text and "on rows of" not in text
    assert "wild" in text and "the loss is not finite" in text
    assert [line[4] for line in arms_table(changed).lines if line[0] == "longer"] == ["–"]


def test_arms_may_have_different_numbers_of_blocks(comparison: Comparison) -> None:
    longer = trial("longer", 1, 5, 8, 8)
    wide = [replace(line, held_out=replace(line.held_out, blocks=line.held_out.blocks * 2)) for line in longer.curve]
    table = blocks_table(replace(comparison, trials=(*comparison.trials, replace(longer, curve=tuple(wide)))))
    assert {len(line) for line in table.lines} == {len(table.header)} == {5}


@pytest.mark.parametrize(
    ("lengths", "names"),
    [
        ((32, 32), ["0–31", "32–63"]),
        ((40, 40), ["0–39", "40–63"]),
        ((None, None), ["block 1", "block 2"]),  # not extended
        ((32, 40), ["block 1", "block 2"]),
    ],
)
def test_blocks_are_named_by_their_positions_as_in_an_evaluation(comparison: Comparison, lengths, names) -> None:
    sides = [trial("plain", 1, 2, 5, 7), trial("better", 1, 5, 8, 8)]
    trials = tuple(replace(one, base_positions=length) for one, length in zip(sides, lengths, strict=True))
    comparison = replace(comparison, trials=trials)
    assert blocks_table(comparison).header == ["arm", *names]
    assert [*blocks_chart(comparison).ticks] == names


def test_the_page_states_the_tokens_and_the_flop_of_a_distillation(comparison: Comparison) -> None:
    assert "distillation" not in comparison_page(comparison, "longmlm compare")
    distilled = Distilled(
        layers=3, window=32, precision="no", tokens=150_000, flop_ratio=2 / 3, rows_sha256="", relative_error=0.1
    )
    plain, *others = comparison.trials
    shown = comparison_page(
        replace(comparison, trials=(replace(plain, distilled=distilled), *others)), "longmlm compare"
    )
    assert (
        "Token counts include the distillation: 0.15 M tokens for plain (each at most 0.67 times the FLOP per "
        "training token)." in shown
    )


def test_blocks_without_a_token_have_no_number(comparison: Comparison) -> None:
    assert blocks_table(comparison).lines[0] == ["better", "26.0 → 40.0", "– → –"]


def test_a_control_arm_gives_a_second_recovery(comparison: Comparison) -> None:
    control = trial("control", 1, 9, 9, 10)
    changed = Comparison(
        model="m", row_length=64, baseline="plain", control="control", trials=(*comparison.trials, control)
    )
    table = arms_table(changed)
    assert table.header[-1] == "incl. control gain"
    assert [line[0] for line in table.lines] == ["better", "plain"]
    assert [line[-1] for line in table.lines] == ["–", "–"]


def test_context_is_compared_by_row(comparison: Comparison) -> None:
    assert context_table(comparison).lines == []
    views = {"base_cut": 6, "base_chunks": 6, "long_after": 7, "long_after_cut": 6}
    evaluated = trial("better", 1, 5, 8, 8, **{name: measured(count) for name, count in views.items()})
    [line] = context_table(Comparison(model="m", row_length=64, baseline="better", trials=(evaluated,))).lines
    assert line == ["better", "30.00", "30.00", "34.00", "30.00", "+4.00 ± 0.00"]


def test_curves_have_a_band_over_seeds(comparison: Comparison) -> None:
    plain, better, goal = recovery_chart(comparison).series
    assert (plain.name, better.name, goal.name) == ("plain", "better", "base_chunks")
    longer = trial("longer", 1, 5, 8, 8)
    longer = replace(longer, curve=tuple(replace(line, base_chunks=37.0) for line in longer.curve))
    *_, goal = recovery_chart(replace(comparison, trials=(*comparison.trials, longer))).series
    assert (goal.name, list(goal.values)) == ("base_chunks of plain", [36.0])
    assert list(better.values) == [26.0, 38.0, 40.0]
    assert list(better.errors or ()) == [0.0, 0.0, 2.0]
    assert list(better.x) == [0.0, 500.0, 1000.0]
    assert [series.name for series in blocks_chart(comparison).series] == ["plain", "better"]
    assert "ink" not in {series.colour for series in blocks_chart(comparison).series}  # white bars on a dark page
    assert len(trials_table(comparison).lines) == 4


@pytest.mark.parametrize("text", HOSTILE[:1])
def test_text_from_outside_is_shown_as_text(comparison: Comparison, text: str) -> None:
    plain, hostile = (comparison_page(with_text(comparison, Comparison, one), f"{one}command") for one in (PLAIN, text))
    assert len(page_structure(plain)) > 50
    assert page_structure(hostile) == page_structure(plain)


def test_the_page_is_written_with_its_pictures(comparison: Comparison, tmp_path: Path) -> None:
    write_comparison(comparison, tmp_path, "# longmlm compare")
    for name in (BLOCKS_PICTURE, RECOVERY_PICTURE, "index.html", Comparison.FILE):
        assert (tmp_path / name).stat().st_size > 1000
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (
        "better ranks first" in text
        and "comparison of 2 arms" in text
        and "nan" not in text.lower().replace("nance", "")
    )
