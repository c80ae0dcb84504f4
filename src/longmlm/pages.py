"""Figures to tables for a terminal, pictures, and one self-contained HTML page."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark;
  --ink: #1c2330; --faint: #667085; --line: #d8dde6; --ground: #ffffff; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebf0; --faint: #9aa4b5; --line: #343c49; --ground: #14181f; --card: #1c222b; }
}
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 44rem; }
.faint { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .75rem 0; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--faint); font-weight: 600; }
img { width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 8px; }
code { background: var(--card); padding: .1rem .3rem; border-radius: 4px; overflow-wrap: anywhere; }
"""
COLOURS = ("#111827", "#c2570c", "#8fb3f0", "#1d4ed8")
DODGE = 0.05


@dataclass(frozen=True, slots=True)
class Table:
    """A header and lines of text of the same length."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, a paragraph, and a table or the file of a picture below it."""

    title: str
    text: str
    shown: Table | Path


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a figure, with the half-length of their error bars where they have one; a level has no place."""

    name: str
    places: Sequence[float]
    values: Sequence[float]
    errors: Sequence[float] | None = None


def text_table(table: Table) -> str:
    """Returns columns of text under a header, the first aligned left and the others right."""
    rows = (table.header, *table.lines)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    rules = ["-" * width for width in widths]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in (table.header, rules, *table.lines))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(cells)]


def packing_table(report: Mapping[str, Any]) -> Table:
    """Returns what rows are made of, a column for each split."""
    splits = ("train", "held_out")
    names = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")
    lines = [[name.replace("_", " "), *(f"{report[split][name]:,}" for split in splits)] for name in names]
    lines.append(["fill rate", *(f"{report[split]['fill_rate']:.1%}" for split in splits)])
    return Table(["", *splits], lines)


def packing_report(report: Mapping[str, Any]) -> str:
    """Returns the packing report as text."""
    set_aside = ", ".join(f"{count:,} x {reason}" for reason, count in report["set_aside"].items()) or "none"
    return (
        f"{text_table(packing_table(report))}\n"
        f"records set aside: {set_aside}\n"
        f"{report['tokens_per_second']:,.0f} tokens/s in {report['elapsed_seconds']:.1f} s"
    )


def draw(path: Path, title: str, axes_titles: tuple[str, str], series: Sequence[Series], ticks: Sequence[str]) -> None:
    """Writes a PNG: a series is points joined by a line; one value without a place is a level across the figure.

    `ticks`, where given, name the places 0, 1, 2 ... of the horizontal axis, at which points then stand side by side.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        if not one.places:
            axes.axhline(one.values[0], color=colour, linestyle="--", linewidth=1.4, label=one.name)
        else:
            look = {"color": colour, "marker": "o", "markersize": 4.5, "capsize": 3}
            shift = DODGE * (number - (len(series) - 1) / 2) if ticks else 0.0
            axes.errorbar([place + shift for place in one.places], one.values, yerr=one.errors, label=one.name, **look)
    axes.set(title=title, xlabel=axes_titles[0], ylabel=axes_titles[1])
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
    axes.grid(axis="y", color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Returns an HTML page that needs no other file: tables as text, pictures as data."""
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="faint">{html.escape(lead)}</p>']
    for section in sections:
        parts += [f"<h2>{html.escape(section.title)}</h2>", f"<p>{html.escape(section.text)}</p>"]
        parts.append(_picture(section) if isinstance(section.shown, Path) else _html_table(section.shown))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _picture(section: Section) -> str:
    assert isinstance(section.shown, Path)
    data = base64.b64encode(section.shown.read_bytes()).decode()
    return f'<img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}">'


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.header)
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in table.lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
