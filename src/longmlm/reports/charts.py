"""Series of numbers to pictures: PNG on white ground, and SVG that takes the colours and the width of its page."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
}
WIDE, NARROW = (9.2, 4.4), (4.4, 4.0)
MOST_TICKS = {WIDE: 12, NARROW: 4}
MARKERS = "osD^v"
SPARSE = 40
LOOK = {
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["ink"],
    "font.size": 10,
    "savefig.transparent": False,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.color": COLOURS["faint"],
    "ytick.labelcolor": COLOURS["ink"],
}

Colour = Literal["ink", "faint", "line", "amber", "pale", "blue"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values with the half-length of their error bars, where they have one; a level is one value without a place."""

    name: str
    colour: Colour
    places: Sequence[float]
    values: Sequence[float]
    errors: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on axes whose titles tell the unit.

    `ticks`, where given, name the places 0, 1, 2 ..., some of them where there is no room for all. `border` is a place
    at which something ends, with its name.
    """

    title: str
    axes_titles: tuple[str, str]
    series: Sequence[Series]
    look: Literal["lines", "points", "bars"] = "lines"
    ticks: Sequence[str] = ()
    border: tuple[float, str] | None = None


def write_png(chart: Chart, path: Path) -> None:
    """Writes the chart with its title."""
    import matplotlib as mpl

    with mpl.rc_context(LOOK):
        figure = _drawn(chart, WIDE)
        figure.suptitle(chart.title)
        figure.savefig(path, dpi=160, format="png")


def svg(chart: Chart, size: tuple[float, float]) -> str:
    """Returns the chart as an SVG element, the same for the same chart, whose colours are the variables of a page."""
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({**LOOK, "svg.hashsalt": f"{chart.title} {size}"}):
        told = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _drawn(chart, size).savefig(written, format="svg", transparent=True, metadata=told)
    text = written.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r'^<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text)
    text = re.sub(r"<defs>\s*<style.*?</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r" ?font-family: [^;]*;| transform=\"rotate\(-0 [^\"]*\"", "", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def _drawn(chart: Chart, size: tuple[float, float]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    if chart.ticks:
        is_slanted = len(chart.ticks) > MOST_TICKS[size]
        look: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
        every = -(-len(chart.ticks) // (2 * MOST_TICKS[size]))
        named = [name if place % every == 0 else "" for place, name in enumerate(chart.ticks)]
        axes.set_xticks(range(len(named)), named, **look)
        axes.set_xlim(-0.6, len(named) - 0.4)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS[size], integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for number, series in enumerate(chart.series):
        _draw(axes, chart, series, number)
    if chart.border:
        place, name = chart.border
        axes.axvline(place, color=COLOURS["faint"], linestyle=":", linewidth=1.2, label=name)
    axes.set(xlabel=chart.axes_titles[0], ylabel=chart.axes_titles[1])
    axes.grid(axis="y", color=COLOURS["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside lower center", ncols=5 if size == WIDE else 2, frameon=False)
    return figure


def _draw(axes: "Axes", chart: Chart, series: Series, number: int) -> None:
    """Draws one series; points and bars of several stand side by side."""
    colour: dict[str, Any] = {"color": COLOURS[series.colour], "label": series.name}
    values, errors = series.values, series.errors
    if not series.places:
        axes.axhline(values[0], linestyle=("--", "-.")[number % 2], linewidth=1.5, **colour)
    elif chart.look == "lines":
        marker = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4 if len(values) <= SPARSE else 2}
        axes.plot(series.places, values, linewidth=1.6, **marker, **colour)
        if errors:
            low = [value - error for value, error in zip(values, errors, strict=True)]
            high = [value + error for value, error in zip(values, errors, strict=True)]
            axes.fill_between(series.places, low, high, color=colour["color"], alpha=0.18, linewidth=0)
    else:
        width = 0.8 / len(chart.series) if chart.look == "bars" else 0.09
        shift = width * (number - (len(chart.series) - 1) / 2)
        places = [place + shift for place in series.places]
        if chart.look == "bars":
            axes.bar(places, values, 0.92 * width, **colour)
        else:
            look = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5, "capsize": 3, "linewidth": 1.4}
            axes.errorbar(places, values, yerr=errors, **look, **colour)
