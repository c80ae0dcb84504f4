"""What the longer context is worth, on pages and cards: a sentence, tables and a chart of what was measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts.accuracy import CHUNK, ROW, Difference
from longmlm.artifacts.evaluation import Evaluation
from longmlm.reports.context import (
    context_finding,
    context_sections,
    context_sentence,
    distance_chart,
    gains_table,
    groups_table,
)
from longmlm.reports.evaluation import evaluation_page
from longmlm.reports.training import TrainingPage
from tests.support.evaluations import FULL, NOTHING
from tests.support.pages import words


def with_gain(gain: Difference | None) -> Evaluation:
    """Returns the evaluation with another gain for tokens that occur again only beyond their chunk."""
    return replace(FULL, gains=FULL.gains | {"occurrence": {**FULL.gains["occurrence"], ROW: gain}})


def test_the_table_has_a_line_per_group_with_tokens() -> None:
    table = gains_table(FULL, "occurrence")
    assert list(table.header) == [
        "other occurrence of the token",
        "selected",
        "share",
        "base_chunks",
        "long_after",
        "gain",
    ]
    assert table.lines == [
        ["in its chunk", "30", "50.0 %", "29.00 ± 0.50", "31.50 ± 0.50", "+2.50 ± 0.50"],
        ["only beyond its chunk", "30", "50.0 %", "27.00 ± 0.50", "29.50 ± 0.50", "+2.50 ± 0.50"],
    ]
    assert [line[0] for line in gains_table(FULL, "offset").lines] == ["0–7", "8–15", "16–23", "24–31", "32–39"]
    assert [line[0] for line in gains_table(FULL, "distance").lines] == ["1", "2–3", "4–7", "8–13", "14–31", "32–39"]
    assert gains_table(with_gain(None), "occurrence").lines[1][-1] == "–"


@pytest.mark.parametrize(
    ("points", "error", "compared"),
    [
        (2.5, 0.5, "2.50 ± 0.50 points above the base model's 27.00 % in chunks."),
        (-2.5, 0.5, "2.50 ± 0.50 points below the base model's 27.00 % in chunks."),
        (0.5, 0.5, "0.50 ± 0.50 points above the base model's 27.00 % in chunks, which may be chance."),
    ],
)
def test_the_sentence_says_what_is_gained_where_the_token_occurs_only_beyond_its_chunk(
    points: float, error: float, compared: str
) -> None:
    start = "Of the tokens with another occurrence only beyond their chunk (50.0 % of all), the long model predicts "
    assert context_sentence(with_gain(Difference(points, error))) == f"{start}29.50 % correctly, {compared}"
    assert "Hardly any" in context_sentence(with_gain(None))


def test_what_longer_context_adds_is_said_with_its_error_and_the_base_model() -> None:
    gain = FULL.recovery
    expected = (
        f"On whole rows, the long model is 2.50 ± {gain.standard_error:.2f} points above the 29.00 % of b in chunks."
    )
    assert context_finding(FULL).startswith(f"{expected} This includes adaptation to the corpus, unless")
    assert context_finding(replace(FULL, measured={})) == ""


def test_the_page_has_sentence_tables_and_chart_after_training_only(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(evaluation_page(FULL, ""))
    text = " ".join(words(tmp_path).split())
    assert re.search("What the longer context is worth .*points above the base model's 27.00 % in chunks", text)
    titles = [section.title for section in context_sections(FULL)]
    assert all(title in text for title in titles) and len(titles) == 3
    assert re.search("only beyond its chunk *30 *50.0 % *27.00 ± 0.50 *29.50 ± 0.50 *.2.50 ± 0.50", text)
    assert context_sections(replace(FULL, gains={})) == []


def test_the_chart_has_both_accuracies_by_distance_and_a_border_where_chunks_end() -> None:
    chart = distance_chart(FULL)
    assert [series.name for series in chart.series] == ["base_chunks", "long_after"]
    assert [*chart.ticks] == ["1", "2–3", "4–7", "8–13", "14–31", "32–39", "none"]
    for series, accuracy in zip(chart.series, (29.0, 31.5), strict=True):
        assert [*series.x] == [0, 1, 2, 3, 4, 5]  # no token is in the last group
        assert [*series.values] == [accuracy - 2 * at for at in range(6)]
        assert [*series.errors] == [1.0] * 6
    assert chart.border[0] == 3.5  # between 13, the longest distance in a chunk of 14 tokens, and 14


def test_the_page_of_a_run_has_the_accuracy_in_the_three_groups(tmp_path: Path) -> None:
    line = FULL.curve[-1]
    base = {name: replace(one, accuracy=5.25) for name, one in line.held_out.groups["occurrence"].items()}
    page = TrainingPage(tmp_path, 20, {}, "")
    page.show(replace(line, base_chunks_by_occurrence=base))
    text = " ".join(words(tmp_path).split())
    assert "By other occurrences of the masked token, step 20" in text
    assert re.search("only beyond its chunk *10 *50.0 % *5.25 ± 0.50 *7.50 ± 0.50", text)
    page.show(line)
    assert re.search("only beyond its chunk *10 *50.0 % *7.50 ± 0.50", " ".join(words(tmp_path).split()))
    groups = line.held_out.groups
    nothing = groups | {"occurrence": {**groups["occurrence"], ROW: NOTHING}}
    page.show(replace(line, held_out=replace(line.held_out, groups=nothing)))
    assert "other occurrences" not in words(tmp_path)
    columns = {"base_chunks": groups["occurrence"], "long model": groups["occurrence"]}
    both = groups_table(columns, "occurrence")
    assert both.lines[0] == [f"in its {CHUNK}", "10", "50.0 %", *["9.50 ± 0.50"] * 2]
