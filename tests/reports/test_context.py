"""What the longer context is worth, beyond the sentences and tables that are accepted with the page."""

from dataclasses import replace

from longmlm.artifacts.accuracy import CHUNK, ROW
from longmlm.reports.context import distance_chart, gains_table, groups_table
from tests.support.evaluations import FULL


def test_the_table_has_a_line_per_group_with_tokens() -> None:
    assert [line[0] for line in gains_table(FULL, "offset").lines] == ["0–7", "8–15", "16–23", "24–31", "32–39"]
    assert [line[0] for line in gains_table(FULL, "distance").lines] == ["1", "2–3", "4–7", "8–13", "14–31", "32–39"]
    without = replace(FULL, gains={"occurrence": {**FULL.gains["occurrence"], ROW: None}})
    assert gains_table(without, "occurrence").lines[1][-1] == "–"


def test_the_chart_has_both_accuracies_by_distance_and_a_border_where_chunks_end() -> None:
    chart = distance_chart(FULL)
    assert [series.name for series in chart.series] == ["base_chunks", "long_after"]
    assert [*chart.ticks] == ["1", "2–3", "4–7", "8–13", "14–31", "32–39", "none"]
    for series, accuracy in zip(chart.series, (29.0, 31.5), strict=True):
        assert [*series.x] == [0, 1, 2, 3, 4, 5]  # no token is in the last group
        assert [*series.values] == [accuracy - 2 * at for at in range(6)]
        assert [*series.errors] == [1.0] * 6
    assert chart.border[0] == 3.5  # between 13, the longest distance in a chunk of 14 tokens, and 14


def test_two_models_stand_side_by_side_in_each_group() -> None:
    groups = FULL.curve[-1].held_out.groups
    columns = {"base_chunks": groups["occurrence"], "long model": groups["occurrence"]}
    line = groups_table(columns, "occurrence").lines[0]
    assert line == [f"in its {CHUNK}", "10", "50.0 %", *["9.50 ± 0.50"] * 2]
