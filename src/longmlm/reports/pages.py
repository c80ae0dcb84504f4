"""HTML pages in one file: light and dark, wide and narrow, no script."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longmlm.folders import PARTIAL
from longmlm.reports.charts import NARROW, WIDE, Chart, svg
from longmlm.reports.tables import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --faint: #5b6678; --line: #d8dde6; --ground: #ffffff; --card: #f5f7fa;
  --amber: #b45309; --pale: #6c8fd0; --blue: #1d4ed8; --good: #15713a; --bad: #b42318; --mark: #fde68a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebf0; --faint: #a3adbd; --line: #343c49; --ground: #14181f; --card: #1c222b;
    --amber: #f5a524; --pale: #8290a8; --blue: #6ea8fe; --good: #5fd38d; --bad: #ff8a80; --mark: #6b5310; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; overflow-wrap: anywhere; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
.faint, dt, small { color: var(--faint); }
.verdict { font-size: 1.1rem; padding-left: .8rem; border-left: .3rem solid var(--faint); margin: 1.25rem 0; }
.verdict.good { border-color: var(--good); }
.verdict.bad { border-color: var(--bad); }
.good > b { color: var(--good); }
.bad > b { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem; }
.tiles dt { font-size: .85rem; line-height: 1.35; }
.tiles dd { margin: 0; }
.tiles dd.value { font-size: 1.75rem; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles dd.value small { font-size: 1rem; font-weight: 400; white-space: nowrap; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; overflow-wrap: anywhere; }
td { white-space: nowrap; }
figure { margin: 1rem 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.narrow { display: none; }
.passages { list-style: none; margin: 1rem 0; padding: 0; display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
.passages > li { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.passages p { margin: .5rem 0 .75rem; overflow-wrap: anywhere; }
.said { display: flex; justify-content: space-between; gap: 1rem; font-size: .85rem; }
mark { background: var(--mark); color: inherit; padding: .05rem .25rem; border-radius: 4px; font-weight: 600; }
.guesses { list-style: none; margin: 0; padding: 0; font-size: .92rem; }
.guesses li { display: grid; grid-template-columns: minmax(0, 9rem) 1fr 3.4rem; gap: .6rem; align-items: center; }
.guesses bdi { overflow-wrap: anywhere; }
.guesses span:last-child { text-align: right; font-variant-numeric: tabular-nums; }
.bar { height: .5rem; border-radius: .25rem; background: var(--pale); min-width: 2px; }
.right .bar { background: var(--good); }
.right bdi { font-weight: 650; }
pre, code { background: var(--card); border-radius: 4px; font-size: .88rem; overflow-wrap: anywhere; }
code { padding: .1rem .3rem; }
pre { padding: .75rem 1rem; border: 1px solid var(--line); white-space: pre-wrap; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; font-size: .9rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding-top: 1.25rem; }
  h1 { font-size: 1.4rem; }
  .broad { display: none; }
  .narrow { display: block; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles dd.value { font-size: 1.4rem; }
  th, td { padding: .4rem .3rem; font-size: .82rem; }
  .guesses li { grid-template-columns: minmax(0, 7.5rem) 1fr 3.4rem; }
  td small { display: block; }
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: .4rem; }
}
@media print { .passages > li, figure { break-inside: avoid; } }
"""

UNSEEN = {" ": "␣", "\n": "↵", "\t": "⇥", "": "∅"}


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure to be seen first: its name, its value, and what stands small beside the value."""

    name: str
    value: str
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """Text around a hidden word, the word, and guesses with their probabilities, the likeliest first."""

    name: str
    before: str
    hidden: str
    after: str
    guesses: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, a paragraph, and what is shown below it."""

    title: str
    text: str
    shown: Table | Chart | Sequence[Passage] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Head:
    """What a page is about: title, one line below it, the finding (good, bad or neither) and the chief figures."""

    title: str
    lead: str
    finding: str = ""
    is_good: bool | None = None
    tiles: Sequence[Tile] = ()


def page(head: Head, sections: Sequence[Section], made_by: str) -> str:
    """Returns an HTML page that needs no other file; `made_by` is the command with its settings."""
    title = html.escape(head.title)
    parts = [f'<header>\n<h1>{title}</h1>\n<p class="faint">{html.escape(head.lead)}</p>']
    if head.finding:
        parts.append(_finding(head))
    if head.tiles:
        parts.append(f'<dl class="tiles">\n{"".join(map(_tile, head.tiles))}</dl>')
    parts.append("</header>\n<main>")
    for section in sections:
        parts += [f"<section>\n<h2>{html.escape(section.title)}</h2>", _shown(section), "</section>"]
    parts.append(f"</main>\n<footer>\n<h2>Make it again</h2>\n<pre>{html.escape(made_by)}</pre>\n</footer>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def write_page(text: str, path: Path) -> None:
    """Writes a page so that a reader sees the old one or the new one; the same page is left as it is."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    aside = path.with_name(path.name + PARTIAL)
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _finding(head: Head) -> str:
    kind = {True: "verdict good", False: "verdict bad", None: "verdict"}[head.is_good]
    first, colon, rest = html.escape(head.finding).partition(":")
    sign = {True: "✓ ", False: "✗ ", None: ""}[head.is_good]
    return f'<p class="{kind}"><b>{sign}{first}</b>{colon}{rest}</p>'


def _tile(tile: Tile) -> str:
    beside = f" <small>{html.escape(tile.beside)}</small>" if tile.beside else ""
    return f'<div><dt>{html.escape(tile.name)}</dt><dd class="value">{html.escape(tile.value)}{beside}</dd></div>\n'


def _shown(section: Section) -> str:
    text = f"<p>{html.escape(section.text)}</p>\n" if section.text else ""
    match section.shown:
        case Table():
            return text + _table(section.shown, section.title)
        case Chart():
            return text + _chart(section.shown)
        case Mapping():
            facts = (
                f"<dt>{html.escape(name)}</dt><dd>{html.escape(what)}</dd>" for name, what in section.shown.items()
            )
            return f'{text}<dl class="facts">{"".join(facts)}</dl>'
        case _:
            return f'{text}<ol class="passages">\n{"".join(map(_passage, section.shown))}</ol>'


def _table(table: Table, title: str) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell).replace("_", "_<wbr>")}</th>' for cell in table.header)
    lines = "\n".join(
        f'<tr><th scope="row">{html.escape(line[0])}</th>{"".join(map(_cell, line[1:]))}</tr>' for line in table.lines
    )
    return (
        f'<div class="wide" role="region" aria-label="{html.escape(title)}" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _cell(text: str) -> str:
    value, sign, error = html.escape(text).partition(" ± ")
    return f"<td>{value} <small>± {error}</small></td>" if sign else f"<td>{value}</td>"


def _chart(chart: Chart) -> str:
    told = "; ".join(f"{series.name} {_in_short(series.values)}" for series in chart.series if len(series.values))
    label = html.escape(f"{chart.title}. {chart.axes_titles[1]} over {chart.axes_titles[0]}: {told}.")
    drawn = "".join(
        f'<div class="{kind}" role="img" aria-label="{label}">{svg(chart, size)}</div>\n'
        for kind, size in (("broad", WIDE), ("narrow", NARROW))
    )
    return f"<figure>\n{drawn}</figure>"


def _in_short(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"from {values[0]:.4g} to {values[-1]:.4g} (least {min(values):.4g}, most {max(values):.4g})"


def _passage(passage: Passage) -> str:
    ranks = [text for text, _ in passage.guesses]
    is_found, is_first = passage.hidden in ranks, ranks[:1] == [passage.hidden]
    verdict = "✓ told" if is_first else f"guess {ranks.index(passage.hidden) + 1}" if is_found else "✗ missed"
    kind = "good" if is_first else "" if is_found else "bad"
    before, hidden, after = (html.escape(text) for text in (passage.before, passage.hidden.strip(), passage.after))
    gap = " " if passage.hidden[:1].isspace() else ""
    guesses = "".join(_guess(*guess, is_right=guess[0] == passage.hidden) for guess in passage.guesses)
    return (
        f'<li><div class="said"><span class="faint">{html.escape(passage.name)}</span>'
        f'<span class="{kind}"><b>{verdict}</b></span></div>\n'
        f'<p dir="auto">… {before.lstrip()}{gap}<mark>{hidden or _visible(passage.hidden)}</mark>{after}</p>\n'
        f'<ol class="guesses">{guesses}</ol></li>\n'
    )


def _guess(text: str, probability: float, is_right: bool) -> str:
    kind, sign = (' class="right"', "✓ ") if is_right else ("", "")
    return (
        f"<li{kind}><span>{sign}<bdi>{_visible(text)}</bdi></span>"
        f'<span class="bar" style="width:{100 * probability:.1f}%"></span><span>{100 * probability:.1f} %</span></li>'
    )


def _visible(text: str) -> str:
    """Returns a piece of text so that it can be seen, white space included."""
    return html.escape(text.strip() or "".join(UNSEEN.get(one, one) for one in text) or UNSEEN[""])
