"""Fill the tables of docs/performance.md and draw its pictures: python docs/scripts/performance.py.

docs/performance.json holds all published results, each with machine and date. If there is an out/benchmarks.json, as
`make bench` writes it, its results replace those of the same benchmark. A table stands between two comments.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pictures import picture

from longmlm.reports.charts import NARROW, Chart, Series, svg

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "out" / "benchmarks.json"
PUBLISHED, PAGE = ROOT / "docs" / "performance.json", ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
PLACE = re.compile(r"([\d,]+) tokens, dropout ([\d.]+)")
BASE = "RoBERTa-base (12 x 768, vocabulary 50,265), "
IN_THE_PICTURE = re.compile(r"1 x (512|1024|2048) tokens, dropout")
TABLES = {
    "training": ("training step", "training step, slower machine", "other models"),
    "window": ("window attention",),
    "other work": (
        *("evaluation", "start-up", "masking", "prepare", "duplicates", "pause of a save"),
        *("profile", "generated positions", "busy machine"),
    ),
}
FILLED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def merged(published: list[dict[str, Any]], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the results with those of a run in place of older ones of the same name."""
    facts = {key: measured[key] for key in ("machine", "date", "revision", "load")}
    results = {one["name"]: one for one in published} | {one["name"]: facts | one for one in measured["results"]}
    return [*results.values()]


def filled(page: str, results: list[dict[str, Any]]) -> str:
    """Returns the page with its tables made from these results."""
    by_name = {one["name"]: one for one in results}

    def table(match: re.Match[str]) -> str:
        return "\n".join([match[1], *_lines(match[2], by_name), "", match[3]])

    return FILLED.sub(table, page)


def pictures(results: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the SVG files by name: speed by row length, and time and memory by row length."""
    by_name = {one["name"]: one for one in results}
    charts = {
        "training-step.svg": list(_speed_charts(by_name["training step"])),
        "growth.svg": list(_growth_charts(by_name["growth"])),
    }
    return {
        name: picture(" ".join(one.description for one in drawn), [(one.title, svg(one, NARROW)) for one in drawn])
        for name, drawn in charts.items()
    }


def _lines(name: str, by_name: dict[str, dict[str, Any]]) -> Iterable[str]:
    """Returns the lines of the table of this name, and where its figures were measured."""
    if name == "rows in 24 GB":
        found = by_name["micro-batch in 24 GB"]
        tables: list[str] = found["tables"]
        return [*tables[2 : tables.index("", 2)], "", _origin([found])]
    if name == "growth":
        found = by_name["growth"]
        head = ["| from 512 to 2048 tokens | exponent | attention's share of the time at 2048 |", "|---|---:|---:|"]
        lines = [
            f"| {line['measured']} | {line['exponent']:.2f} | {line['quadratic_share']:.0%} |"
            for line in found["growth"]
        ]
        return [*head, *lines, "", _origin([found])]
    benchmarks = [by_name[each] for each in TABLES[name]]
    head = ["| work | longmlm | peer | ratio | GiB |", "|---|---:|---|---:|---:|"]
    entries = [(one["name"], entry) for one in benchmarks for entry in (one, *one.get("others", ()))]
    lines = [_row(*entry) for entry in entries if not IN_THE_PICTURE.search(entry[1]["shape"])]
    return [*head, *lines, "", _origin(benchmarks)]


def _origin(benchmarks: list[dict[str, Any]]) -> str:
    """Returns the script and the date of each benchmark, and the machines."""
    scripts = dict.fromkeys(f"`{one['command'].split()[1]}` ({one['date']})" for one in benchmarks)
    machines = dict.fromkeys(one["machine"] for one in benchmarks)
    return f"{', '.join(scripts)}: {', '.join(machines)}."


def _row(name: str, entry: dict[str, Any]) -> str:
    unit = "" if entry["unit"] == "tokens/s" else f" {entry['unit']}"
    peer = ratio = "–"
    if entry["peer"] is not None:
        peer = f"{_figure(entry['peer'])}{unit}, {entry['peer_name'].replace('transformers Trainer', 'Trainer')}"
        ratio = f"{entry['ratio']:.2f}"
    memory = "/".join(f"{entry[key]:.2f}" for key in ("ours_gib", "peer_gib") if entry.get(key) is not None) or "–"
    work = f"{name}: {entry['shape'].replace(BASE, '').removesuffix(', bf16')}"
    return f"| {work} | {_figure(entry['ours'])}{unit} | {peer} | {ratio} | {memory} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _speed_charts(one: dict[str, Any]) -> Iterator[Chart]:
    """Yields bars of tokens/s by row length, for each dropout that was measured."""
    places = [(entry, PLACE.search(entry["shape"])) for entry in (one, *one["others"])]
    known = [(int(match[1].replace(",", "")), match[2], entry) for entry, match in places if match]
    for dropout in sorted({dropout for _, dropout, _ in known}, reverse=True):
        points = sorted(
            (length, float(entry["ours"]), float(entry["peer"])) for length, own, entry in known if own == dropout
        )
        x = [float(number) for number in range(len(points))]
        series = [
            Series("longmlm", "blue", x, [ours for _, ours, _ in points]),
            Series("Trainer", "amber", x, [peer for *_, peer in points]),
        ]
        titles, ticks = ("row length (tokens)", "tokens/s"), [str(length) for length, *_ in points]
        yield Chart(f"Training step, dropout {dropout}", titles, series, "bars", ticks)


def _growth_charts(one: dict[str, Any]) -> Iterator[Chart]:
    """Yields time and memory over the row length, without dropout and with it."""
    lengths, flops, entries = list(map(float, one["row_lengths"])), one["flop_per_token"], [one, *one["others"]]
    halves = (("dropout 0", "blue", entries[: len(lengths)]), ("dropout 0.1", "amber", entries[len(lengths) :]))
    formula = [1e3 / entries[0]["ours"] * flop / flops[0] for flop in flops]
    times = [Series(name, colour, lengths, [1e3 / entry["ours"] for entry in half]) for name, colour, half in halves]
    times.append(Series("formula, dropout 0", "faint", lengths, formula))
    yield Chart("Time per token", ("row length (tokens)", "ms per token"), times)
    memory = [Series(name, colour, lengths, [entry["ours_gib"] for entry in half]) for name, colour, half in halves]
    yield Chart("Peak memory, same number of tokens", ("row length (tokens)", "GiB"), memory)


def main() -> None:
    """Publishes the last run, if any, and writes page and pictures."""
    results = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    if MEASURED.exists():
        measured = json.loads(MEASURED.read_text(encoding="utf-8"))
        if measured["is_quick"]:
            sys.exit(
                f"error: {MEASURED} holds results of --quick, which are not published: run make bench, or remove it"
            )
        results = merged(results, measured)
        PUBLISHED.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for name, text in pictures(results).items():
        (PICTURES / name).write_text(text, encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
