"""Charts of series of numbers: PNG on a white background, and SVG that takes the colours and width of its page."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from longmlm.artifacts.accuracy import ERRORS_OF_CHANCE, Accuracy
from longmlm.escaping import single_line
from longmlm.temporary import replaced_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ink": "#1c2330",
    "faint": "#5b6678",
    "line": "#d8dde6",
    "amber": "#b45309",
    "pale": "#6c8fd0",
    "blue": "#1d4ed8",
    "green": "#15713a",
    "red": "#b42318",
}
WIDE, NARROW = (9.2, 4.4), (4.4, 4.0)
MAX_TICKS = {WIDE: 12, NARROW: 4}
LEGEND_CHARACTERS = {WIDE: 115, NARROW: 52}
MAX_CHARACTERS, MAX_TICK_CHARACTERS = 60, 30  # of a name: a longer one leaves no room for the chart
HANDLE_CHARACTERS = 7  # the room that a legend's handle and gap take
MARKERS = "osD^v"
SPARSE = 40
LOOK = {
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["ink"],
    "font.size": 10,
    "savefig.transparent": False,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a dollar in a name is no formula
    "xtick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.color": COLOURS["faint"],
    "ytick.labelcolor": COLOURS["ink"],
}

Colour = Literal["ink", "faint", "line", "amber", "pale", "blue", "green", "red"]
PALETTE: tuple[Colour, ...] = ("blue", "amber", "green", "red", "pale")  # of arms that are compared, the best first


@dataclass(frozen=True, slots=True)
class Series:
    """Values at x, with the lengths of their error bars if known; one value without x is a horizontal line.

    `errors` is one list, or two where the bars below and above the values differ.
    """

    name: str
    colour: Colour
    x: Sequence[float]
    values: Sequence[float]
    errors: Sequence[float] | Sequence[Sequence[float]] | None = None

    @property
    def summary(self) -> str:
        """The series in words: its only value, or the first and last one and the extremes."""
        first, *others = self.values
        if not others:
            return f"{self.name} {first:.4g}"
        extremes = f"(minimum {min(self.values):.4g}, maximum {max(self.values):.4g})"
        return f"{self.name} from {first:.4g} to {others[-1]:.4g} {extremes}"


def accuracy_series(name: str, colour: Colour, points: Sequence[tuple[float, Accuracy]]) -> Series:
    """Returns accuracies in percent at x, with error bars of two standard errors."""
    values = [accuracy.accuracy or 0.0 for _, accuracy in points]
    errors = [ERRORS_OF_CHANCE * (accuracy.standard_error or 0.0) for _, accuracy in points]
    return Series(name, colour, [x for x, _ in points], values, errors)


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on axes whose titles name the unit.

    `ticks`, if given, label x = 0, 1, 2 ...; some are left out where there is no room. `border` is the x of a
    vertical line and its label.
    """

    title: str
    axes_titles: tuple[str, str]
    series: Sequence[Series]
    look: Literal["lines", "points", "bars"] = "lines"
    ticks: Sequence[str] = ()
    border: tuple[float, str] | None = None

    @property
    def description(self) -> str:
        """The chart in words, for screen readers."""
        summaries = "; ".join(series.summary for series in self.series if len(series.values))
        return f"{self.title}. {self.axes_titles[1]} over {self.axes_titles[0]}: {summaries}."


def write_png(chart: Chart, path: Path) -> None:
    """Writes the chart with its title."""
    with _look():
        figure = _draw_chart(chart, WIDE)
        figure.suptitle(_label(chart.title))
        with replaced_file(path) as partial:
            figure.savefig(partial, dpi=160, format="png")


def svg(chart: Chart, size: tuple[float, float]) -> str:
    """Returns the chart as an SVG element whose colours are CSS variables; equal charts give identical text."""
    buffer = io.StringIO()
    with _look(**{"svg.hashsalt": f"{chart.title} {size}"}):
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _draw_chart(chart, size).savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r'^<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text)
    text = re.sub(r"<defs>\s*<style.*?</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r" ?font-family: [^;]*;| transform=\"rotate\(-0 [^\"]*\"", "", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text


@contextmanager
def _look(**more: str) -> Iterator[None]:
    """Sets the look of charts; a browser has the characters that matplotlib's own font does not have."""
    import matplotlib as mpl

    with mpl.rc_context({**LOOK, **more}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _label(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Returns a text as one short line; matplotlib leaves a name that starts with _ out of the legend."""
    line = single_line(text)
    short = line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"
    return f" {short}" if short.startswith("_") else short


def _draw_chart(chart: Chart, size: tuple[float, float]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if chart.ticks:
        every = -(-len(chart.ticks) // (2 * MAX_TICKS[size]))
        ticks = [
            _label(tick, MAX_TICK_CHARACTERS) if index % every == 0 else "" for index, tick in enumerate(chart.ticks)
        ]
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(ticks)), ticks, **(slant if len(ticks) > MAX_TICKS[size] else {}))
        axes.set_xlim(-0.6, len(ticks) - 0.4)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(MAX_TICKS[size], integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for number, series in enumerate(chart.series):
        _draw_series(axes, chart, series, number)
    if chart.border:
        x, label = chart.border
        axes.axvline(x, color=COLOURS["faint"], linestyle=":", linewidth=1.2, label=_label(label))
    _limit(axes, chart)
    axes.set(xlabel=_label(chart.axes_titles[0]), ylabel=_label(chart.axes_titles[1]))
    axes.grid(axis="y", color=COLOURS["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(names := axes.get_legend_handles_labels()[1]) > 1:
        num_columns = LEGEND_CHARACTERS[size] // (max(map(len, names)) + HANDLE_CHARACTERS)
        figure.legend(loc="outside lower center", ncols=max(1, min(5, num_columns)), frameon=False)
    return figure


def _limit(axes: "Axes", chart: Chart) -> None:
    """Ends the axis of percentages at 0 if none is below, and gives values that are all 0 a range with a meaning."""
    is_percent = chart.axes_titles[1].endswith("(%)")
    low, high = axes.dataLim.intervaly
    if low == high == 0:
        axes.set_ylim((0, 100) if is_percent else (-1, 1))
    elif is_percent and low >= 0 > axes.get_ylim()[0]:
        axes.set_ylim(0, axes.get_ylim()[1])


def _draw_series(axes: "Axes", chart: Chart, series: Series, number: int) -> None:
    """Draws one series; points and bars of several series are drawn side by side."""
    colour, label, values = COLOURS[series.colour], _label(series.name), series.values
    marker = MARKERS[number % len(MARKERS)]
    if not series.x:
        axes.axhline(values[0], linestyle=("--", "-.")[number % 2], linewidth=1.5, color=colour, label=label)
    elif chart.look == "lines":
        size = 4 if len(values) <= SPARSE else 2
        axes.plot(series.x, values, linewidth=1.6, marker=marker, markersize=size, color=colour, label=label)
        if series.errors:
            band = np.asarray([[-1.0], [1.0]]) * series.errors + values
            axes.fill_between(series.x, *band, color=colour, alpha=0.18, linewidth=0)
    else:
        width = 0.8 / len(chart.series) if chart.look == "bars" else 0.09
        shift = width * (number - (len(chart.series) - 1) / 2)
        shifted = [x + shift for x in series.x]
        if chart.look == "bars":
            axes.bar(shifted, values, 0.92 * width, color=colour, label=label)
        else:  # without clipping, a marker at the end of an axis is drawn whole
            look: dict[str, Any] = {"marker": marker, "markersize": 5, "capsize": 3, "linewidth": 1.4, "clip_on": False}
            axes.errorbar(shifted, values, yerr=series.errors, color=colour, label=label, **look)
