"""Charts to pictures: the same data as PNG and as SVG that takes the page's colours."""

import functools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest

from longmlm.reports.charts import COLOURS, NARROW, WIDE, Chart, Series, svg, write_png

LINES = Chart(
    "Recovery",
    ("step (updates)", "accuracy (%)"),
    (Series("base", "ink", (), (30.0,)), Series("long", "blue", (0.0, 1e3, 2e3), (10.0, 25.0, 31.0), (1.0,) * 3)),
    border=(1500.0, "half of it"),
)
POINTS = replace(LINES, look="points", ticks=("0–9", "10–19", "20–29"), border=None)
POINTS = replace(
    POINTS, series=tuple(Series(name, "pale", (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), (0.1,) * 3) for name in "ab")
)
BARS = replace(POINTS, look="bars")
CHARTS = pytest.mark.parametrize("chart", [LINES, POINTS, BARS], ids=["lines", "points", "bars"])
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])

drawn = functools.cache(svg)


class Reader(HTMLParser):
    """Collects what an SVG says and what it names and refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.said, self.ids, self.uses, self.sizes = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.uses += [str(values[key]).lstrip("#") for key in ("href", "xlink:href") if key in values]
        self.uses += re.findall(r"url\(#(\w+)\)", " ".join(str(value) for value in values.values()))
        if tag == "text":
            self.sizes.append(float(re.findall(r"font-size: ([\d.]+)px", str(values["style"]))[0]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "text":
            self.said.append(data)


@CHARTS
@SIZES
def test_axes_series_and_ticks_are_named_in_words_that_can_be_read(chart: Chart, size: tuple[float, float]) -> None:
    reader = Reader(drawn(chart, size))
    named = {*chart.axes_titles, *(series.name for series in chart.series), *chart.ticks}
    assert named <= set(reader.said)
    assert chart.border is None or chart.border[1] in reader.said
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', drawn(chart, size))[0])
    assert min(reader.sizes) * (358 if size == NARROW else 896) / width >= 11


@CHARTS
@SIZES
def test_drawing_takes_its_colours_from_the_page_and_nothing_from_elsewhere(
    chart: Chart, size: tuple[float, float]
) -> None:
    text = drawn(chart, size)
    assert not re.search(r"#[0-9a-f]{6}\b|rgb|https?:|<style|font-family", text)
    used = set(re.findall(r"var\(--(\w+)\)", text))
    assert {series.colour for series in chart.series} <= used <= COLOURS.keys()


@CHARTS
def test_drawings_of_one_page_do_not_take_each_others_parts(chart: Chart) -> None:
    """A browser takes the first element of a name, also when it is hidden, and then draws nothing."""
    both = [Reader(drawn(chart, size)) for size in (WIDE, NARROW)]
    both.append(Reader(drawn(replace(chart, title="Another"), WIDE)))
    for one in both:
        assert set(one.uses) <= set(one.ids)
        assert len(one.ids) == len(set(one.ids)) > 0
    assert len({name for one in both for name in one.ids}) == sum(len(one.ids) for one in both)


@CHARTS
def test_same_chart_is_drawn_the_same(chart: Chart) -> None:
    assert svg(chart, WIDE) == drawn(chart, WIDE)
    assert drawn(chart, WIDE) != svg(replace(chart, series=chart.series[:1]), WIDE)


def test_many_ticks_are_slanted_where_they_would_meet() -> None:
    many = replace(BARS, ticks=tuple(f"{512 * block}–{512 * block + 511}" for block in range(8)))
    assert "rotate(-45" in drawn(many, NARROW)
    assert all(tick in Reader(drawn(many, NARROW)).said for tick in many.ticks)
    assert "rotate(-45" not in drawn(many, WIDE)
    too_many = replace(BARS, ticks=tuple(f"{5 * part}–{5 * part + 5}" for part in range(20)))
    assert 4 < sum(tick in Reader(drawn(too_many, NARROW)).said for tick in too_many.ticks) <= 8
    assert "rotate(-45" not in drawn(BARS, NARROW)


@CHARTS
def test_picture_shows_something(chart: Chart, tmp_path: Path) -> None:
    write_png(chart, tmp_path / "chart.png")
    picture = matplotlib.image.imread(tmp_path / "chart.png")
    height, width = picture.shape[:2]
    assert width > height > 300
    assert (picture[0, 0, :3] == 1).all()
    assert len({tuple(pixel) for pixel in picture[::3, ::3, :3].reshape(-1, 3).round(1)}) > 4


@pytest.mark.parametrize(
    ("title", "values", "ticks"),
    [
        ("F1 (%)", (0.0, 0.0), {"0", "100"}),
        ("F1 (%)", (0.0, 40.0), {"0", "40"}),
        ("F1, points above base", (0.0, 0.0), {"−1", "1"}),
        ("Spearman (%)", (-40.0, 0.0), {"−40", "0"}),
    ],
)
def test_axes_of_scores_have_a_range_with_a_meaning(title: str, values: tuple[float, ...], ticks: set[str]) -> None:
    chart = Chart("", ("", title), [Series("a", "blue", (0.0, 1.0), values, ((0.0, 0.0), (0.0, 0.0)))], "points", "ab")
    said = Reader(svg(chart, WIDE)).said
    assert ticks <= {*said}
    assert "(%)" not in title or min(values) < 0 or not any(text.startswith("−") for text in said)
