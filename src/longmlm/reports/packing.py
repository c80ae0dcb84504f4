"""Reports on packed rows, as a table, as text and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

from longmlm.artifacts.rows import SPLITS, PackingReport, RowsManifest, SourceRecord, Split
from longmlm.data.notes import rows_notes
from longmlm.errors import counted
from longmlm.reports.charts import Chart, Colour, Series
from longmlm.reports.pages import Head, Section, Tile, page
from longmlm.reports.tables import Table, text_table
from longmlm.settings.prepare import PackingMode, source_names

NAMES: dict[Split, tuple[str, Colour]] = {"train": ("training", "blue"), "held_out": ("held-out", "amber")}
COUNTS = ("documents", "sentences", "tokens", "rows", "separators", "cut_sentences")
MAX_FILES = 3  # that are named
HEAD_CHARACTERS, TAIL_CHARACTERS = 600, 300
SENTENCES = "Whole sentences fill a row until the next would not fit; only a sentence longer than a row is cut."
SOURCES = "Tokens of the text, without special tokens; unknown ones stand for words that the tokenizer does not have."
FILL = "The fill rate counts separators and both special tokens."
PACKING: dict[PackingMode, str] = {
    "full-sentences": "A row may hold several documents, with a separator where two meet.",
    "doc-sentences": "No row holds parts of two documents.",
    "sentence-pair": "A row holds at most two sentences, of one document.",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A row to show: how many tokens and documents it has, and its text with special tokens."""

    num_tokens: int
    num_documents: int
    text: str


def packing_table(report: PackingReport) -> Table:
    """Returns what rows are made of, with a column for each split."""
    splits = [report.of(split) for split in SPLITS]
    lines = [[name.replace("_", " "), *(f"{getattr(split, name):,}" for split in splits)] for name in COUNTS]
    lines.insert(1, ["exact copies of documents", *(f"{split.copies:,}" for split in splits)])
    lines.append(["fill rate", *(f"{split.fill_rate:.1%}" for split in splits)])
    return Table(["", *SPLITS], lines)


def packing_report(manifest: RowsManifest) -> str:
    """Returns the packing report as text."""
    report = manifest.report
    unknown = zip(report.unknown_shares, map(name_of, manifest.plan.sources), strict=True)
    lines = [
        text_table(packing_table(report)),
        f"unknown tokens: {', '.join(f'{share:.2%} of {name}' for share, name in unknown)}",
        f"records set aside: {set_aside_text(report.set_aside) or 'none'}",
        f"{report.tokens_per_second:,.0f} tokens/s in {report.elapsed_seconds:.1f} s",
    ]
    if found := report.duplicates:
        lines.insert(3, f"families of copies: {found.count:,}; leaks prevented: {found.leaks:,}")
    return "\n".join(lines)


def set_aside_text(counts: Mapping[str, int]) -> str:
    """Returns how many records were set aside for each reason; empty if there were none."""
    return ", ".join(f"{count:,} x {reason}" for reason, count in counts.items())


def packing_page(manifest: RowsManifest, example: Example, made_by: str) -> str:
    """Returns the page about a folder of rows."""
    report, plan = manifest.report, manifest.plan
    train, held_out = report.train, report.held_out
    total = {name: getattr(train, name) + getattr(held_out, name) for name in COUNTS}
    fill = (train.fill_rate * train.rows + held_out.fill_rate * held_out.rows) / max(1, total["rows"])
    requested = f"{plan.held_out_fraction:.2%}"
    tiles = [
        Tile("rows", f"{total['rows']:,}", f"of {plan.row_length:,}"),
        Tile("tokens", _short(total["tokens"])),
        Tile("documents", _short(total["documents"])),
        Tile("documents held out", f"{held_out.documents / max(1, total['documents']):.2%}", f"requested: {requested}"),
        Tile("filled", f"{fill:.1%}"),
        Tile("sentences cut", f"{total['cut_sentences']:,}", f"of {_short(total['sentences'])}"),
        Tile("records set aside", f"{sum(report.set_aside.values()):,}"),
    ]
    lead = (
        f"{counted(train.rows, 'training row')} and {counted(held_out.rows, 'held-out row')}, from different "
        f"documents: {held_out.documents:,} of {total['documents']:,} are held out; {requested} were requested."
    )
    text = f"{SENTENCES} {PACKING[plan.packing]} {FILL}"
    sections = [Section("What the rows are made of", text, packing_table(report)), *_charts(report, plan.row_length)]
    sections.append(Section("Where the tokens come from", SOURCES, sources_table(manifest)))
    if notes := [[note.removeprefix("note: ")] for note in rows_notes(manifest)]:
        sections.append(Section("Notes", "What another setting may change.", Table(["note"], notes)))
    if report.set_aside:
        aside = Table(["reason", "records"], [[reason, f"{count:,}"] for reason, count in report.set_aside.items()])
        sections.append(Section("Records set aside", "The folder set_aside lists each of them.", aside))
    if found := report.duplicates:
        text = f"{found.count:,} in all. Documents moved to the split of their copies: {found.leaks:,}."
        families = [[f"{family.size:,}", family.words, family.origin] for family in found.largest]
        sections.append(Section("The largest families of copies", text, Table(["documents", "first", "in"], families)))
    sections.append(Section("The first training row", "Decoded, with its special tokens.", _facts(example)))
    head = Head(f"{_short(total['tokens'])} tokens in rows of {plan.row_length:,}", lead, tiles=tiles)
    return page(head, sections, made_by)


def _facts(example: Example) -> dict[str, str]:
    text = example.text
    if left_out := max(0, len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS):
        text = f"{text[:HEAD_CHARACTERS]} … [{counted(left_out, 'character')}] … {text[-TAIL_CHARACTERS:]}"
    return {"tokens": f"{example.num_tokens:,}", "documents": f"{example.num_documents:,}", "text": text}


def _charts(report: PackingReport, row_length: int) -> list[Section]:
    lengths = {split: report.of(split).document_lengths for split in SPLITS}
    names = [f"{2**power:,}" for power in range(max(map(len, lengths.values())))]
    border = (log2(row_length) - 0.5, f"row of {row_length:,} tokens")
    titles = ("tokens in a document, from … to twice as many", "documents (%)")
    of_lengths = _bars("Document lengths", titles, lengths, names, border)
    fills = {split: report.of(split).fills for split in SPLITS}
    names = [f"{5 * part}–{5 * part + 5}" for part in range(20)]
    of_fills = _bars("Fill of the rows", ("share of a row that is filled (%)", "rows (%)"), fills, names, None)
    text = "The rest of a row is the space into which the next sentence did not fit."
    return [
        Section("How long the documents are", "Each bar covers lengths up to the next one's.", of_lengths),
        Section("How full the rows are", text, of_fills),
    ]


def _bars(
    title: str,
    axes_titles: tuple[str, str],
    counts: Mapping[Split, Sequence[int]],
    names: Sequence[str],
    border: tuple[float, str] | None,
) -> Chart:
    """Returns bars in percent of each split, without the empty ones at both ends."""
    filled = [index for histogram in counts.values() for index, count in enumerate(histogram) if count]
    first, last = min(filled, default=0), max(filled, default=0)
    series = []
    for split, (name, colour) in NAMES.items():
        bars = [*counts[split], *[0] * len(names)][first : last + 1]
        shares = [100 * count / max(1, sum(counts[split])) for count in bars]
        series.append(Series(name, colour, [float(index) for index in range(len(bars))], shares))
    inside = (border[0] - first, border[1]) if border and first <= border[0] <= last + 1 else None
    return Chart(title, axes_titles, series, "bars", names[first : last + 1], inside)


def sources_table(manifest: RowsManifest) -> Table:
    """Returns how many tokens each source contributed to each split; several sources are shown with their names."""
    counts = [manifest.report.of(split).tokens_per_source for split in SPLITS]
    total, lines, sources = max(1, sum(map(sum, counts))), [], manifest.plan.sources
    names = source_names(sources) if len(sources) > 1 else [""]
    for name, source, unknown, *tokens in zip(names, sources, manifest.report.unknown_shares, *counts, strict=True):
        shares = [f"{sum(tokens) / total:.1%}", f"{unknown:.2%}"]
        words = f"{name}: {name_of(source)}".removeprefix(": ")
        lines.append([words, source.language, *(f"{count:,}" for count in tokens), *shares])
    return Table(["source", "language", *(name for name, _ in NAMES.values()), "share", "unknown"], lines)


def name_of(source: SourceRecord) -> str:
    """Returns a source in words, without local paths: a dataset with subset and split, or the names of files."""
    source = source.without_paths()
    if source.dataset:
        return ", ".join(part for part in (source.dataset, source.subset, source.split) if part)
    more = f" and {counted(len(source.files) - MAX_FILES, 'more file')}" if len(source.files) > MAX_FILES else ""
    return ", ".join(file.path for file in source.files[:MAX_FILES]) + more


def _short(count: int) -> str:
    """Returns a count in about four characters, such as 663 k."""
    for size, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * size or (size > 10**3 and count >= size):
            return f"{count / size:.3g} {name}" if count < 1000 * size else f"{count / size:,.0f} {name}"
    return f"{count:,}"
