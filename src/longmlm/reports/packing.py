"""A manifest of rows to the packing report: a table, a text, a page."""

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from longmlm.reports.charts import Chart, Colour, Series
from longmlm.reports.pages import Head, Section, Tile, page
from longmlm.reports.tables import Table, text_table
from longmlm.settings.prepare import PackingMode

SPLITS: dict[str, tuple[str, Colour]] = {"train": ("training", "blue"), "held_out": ("held-out", "amber")}
COUNTS = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")
MOST_FILES = 3
SENTENCES = "Whole sentences fill a row until the next would not fit; only one longer than a row is cut."
FILL = "The fill rate counts separators and both special tokens."
PACKING: dict[PackingMode, str] = {
    "full-sentences": "A row may hold several documents, with a separator where two meet.",
    "doc-sentences": "No row holds parts of two documents.",
}


def packing_table(report: Mapping[str, Any]) -> Table:
    """Returns what rows are made of, a column for each split."""
    lines = [[name.replace("_", " "), *(f"{report[split][name]:,}" for split in SPLITS)] for name in COUNTS]
    lines.append(["fill rate", *(f"{report[split]['fill_rate']:.1%}" for split in SPLITS)])
    return Table(["", *SPLITS], lines)


def packing_report(report: Mapping[str, Any]) -> str:
    """Returns the packing report as text."""
    set_aside = ", ".join(f"{count:,} x {reason}" for reason, count in report["set_aside"].items()) or "none"
    return (
        f"{text_table(packing_table(report))}\n"
        f"records set aside: {set_aside}\n"
        f"{report['tokens_per_second']:,.0f} tokens/s in {report['elapsed_seconds']:.1f} s"
    )


def packing_page(manifest: Mapping[str, Any], made_by: str) -> str:
    """Returns the page about a folder of rows; charts of what an older manifest does not tell are left out."""
    report, row_length = manifest["report"], manifest["row_length"]
    total = {name: sum(report[split][name] for split in SPLITS) for name in COUNTS}
    rows = {split: report[split]["rows"] for split in SPLITS}
    fill = sum(report[split]["fill_rate"] * rows[split] for split in SPLITS) / max(1, total["rows"])
    tiles = [
        Tile("rows", f"{total['rows']:,}", f"of {row_length:,}"),
        Tile("tokens", _short(total["tokens"])),
        Tile("documents", _short(total["documents"])),
        Tile("filled", f"{fill:.1%}"),
        Tile("sentences cut", f"{total['cut_sentences']:,}", f"of {_short(total['sentences'])}"),
        Tile("records set aside", f"{sum(report['set_aside'].values()):,}"),
    ]
    lead = f"{rows['train']:,} training rows and {rows['held_out']:,} held-out rows, of different documents."
    text = PACKING[manifest["plan"]["settings"]["packing"]]
    sections = [Section("What the rows are made of", f"{SENTENCES} {text} {FILL}", packing_table(report))]
    sections += _charts(report, row_length)
    if all("tokens_per_source" in report[split] for split in SPLITS):
        text = "Tokens of the text, without special ones."
        sections.append(Section("Where the tokens come from", text, sources_table(manifest)))
    if report["set_aside"]:
        aside = Table(["why", "records"], [[reason, f"{count:,}"] for reason, count in report["set_aside"].items()])
        sections.append(Section("Records set aside", "The folder set_aside names each of them.", aside))
    return page(
        Head(f"{_short(total['tokens'])} tokens in rows of {row_length:,}", lead, tiles=tiles), sections, made_by
    )


def _charts(report: Mapping[str, Any], row_length: int) -> list[Section]:
    sections = []
    lengths = {split: report[split].get("document_lengths") for split in SPLITS}
    if None not in lengths.values():
        names = [f"{2**power:,}" for power in range(max(map(len, lengths.values())))]
        border = (log2(row_length) - 0.5, f"row of {row_length:,} tokens")
        titles = ("tokens in a document, from … to twice that", "documents (%)")
        shown = _bars("Document lengths", titles, lengths, names, border)
        sections.append(Section("How long the documents are", "Each bar covers lengths up to the next one's.", shown))
    fills = {split: report[split].get("fills") for split in SPLITS}
    if None not in fills.values():
        names = [f"{5 * part}–{5 * part + 5}" for part in range(20)]
        shown = _bars("Fill of the rows", ("share of a row that is filled (%)", "rows (%)"), fills, names, None)
        text = "What is missing to 100 % is the room that the next sentence did not fit into."
        sections.append(Section("How full the rows are", text, shown))
    return sections


def _bars(
    title: str,
    axes_titles: tuple[str, str],
    counts: Mapping[str, Sequence[int]],
    names: Sequence[str],
    border: tuple[float, str] | None,
) -> Chart:
    """Returns bars in percent of each split, without the empty ones at both ends."""
    padded = {split: [*of, *[0] * (len(names) - len(of))] for split, of in counts.items()}
    filled = [place for place in range(len(names)) if any(of[place] for of in padded.values())]
    first, last = (filled[0], filled[-1]) if filled else (0, 0)
    series = []
    for split, (name, colour) in SPLITS.items():
        shares = [100 * count / max(1, sum(padded[split])) for count in padded[split][first : last + 1]]
        series.append(Series(name, colour, [float(place) for place in range(len(shares))], shares))
    inside = (border[0] - first, border[1]) if border and first <= border[0] <= last + 1 else None
    return Chart(title, axes_titles, series, "bars", names[first : last + 1], inside)


def sources_table(manifest: Mapping[str, Any]) -> Table:
    """Returns how many tokens each source gave, a column for each split."""
    report = manifest["report"]
    total = max(1, sum(report[split]["tokens"] for split in SPLITS))
    lines = []
    for number, source in enumerate(manifest["plan"]["sources"]):
        tokens = [report[split]["tokens_per_source"][number] for split in SPLITS]
        shares = (*(f"{count:,}" for count in tokens), f"{sum(tokens) / total:.1%}")
        lines.append([_name(source), source.get("language", ""), *shares])
    return Table(["source", "language", *(name for name, _ in SPLITS.values()), "share"], lines)


def _name(source: Mapping[str, Any]) -> str:
    if "dataset" in source:
        return ", ".join(source[key] for key in ("dataset", "subset", "split") if key in source)
    files = [file["path"].rsplit("/", 1)[-1] for file in source.get("files", ())]
    more = f" and {len(files) - MOST_FILES:,} more files" if len(files) > MOST_FILES else ""
    return ", ".join(files[:MOST_FILES]) + more


def _short(count: int) -> str:
    """Returns a count in four characters or so, such as 663 k."""
    for size, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * size or (size > 10**3 and count >= size):
            return f"{count / size:.3g} {name}" if count < 1000 * size else f"{count / size:,.0f} {name}"
    return f"{count:,}"
