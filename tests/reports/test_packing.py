"""The packing report: the numbers that were counted, and no more than was counted."""

from collections.abc import Callable
from dataclasses import replace

from longmlm.artifacts.rows import Families, Family, RowsManifest
from longmlm.reports.packing import Example, packing_page, packing_report
from tests.support.accepted import changes, lines_of
from tests.support.rows import rows_manifest

EXAMPLE = Example(500, 2, f"<s>It rained.</s>{'x' * 2_000}</s>")
FAMILIES = Families(count=1234, leaks=5, largest=(Family(size=6789, words="A <b>", origin="laws.jsonl:77"),))


def manifest() -> RowsManifest:
    made = rows_manifest(fill_rate=0.925)
    held_out = replace(made.report.held_out, documents=2, rows=20, fill_rate=0.5)
    return replace(made, report=replace(made.report, held_out=held_out, set_aside={"no <text>": 7}))


def test_pages_and_reports_are_those_that_were_accepted(accepted: Callable[[str, str], None]) -> None:
    usual = manifest()
    longer = replace(usual.report.held_out, document_lengths=(0, 0, 2))
    variants = {
        "held-out documents of other lengths": replace(usual, report=replace(usual.report, held_out=longer)),
        "documents in rows of their own": replace(usual, plan=replace(usual.plan, packing="doc-sentences")),
        "families of copies": replace(usual, report=replace(usual.report, duplicates=FAMILIES)),
    }
    pages = {name: packing_page(one, EXAMPLE, "the command") for name, one in variants.items()}
    page = packing_page(usual, EXAMPLE, "the command")
    assert "/somewhere" not in page and "A &lt;b&gt;" in pages["families of copies"]
    accepted("packing_page.txt", lines_of(page))
    accepted("packing_pages.diff", changes(lines_of(page), {name: lines_of(one) for name, one in pages.items()}))
    accepted("packing_report.txt", f"{packing_report(usual)}\n")
    accepted("packing_report_with_copies.txt", f"{packing_report(variants['families of copies'])}\n")


def test_what_was_counted_is_shown_as_counts_and_shares() -> None:
    page = lines_of(packing_page(manifest(), EXAMPLE, "the command"))
    for part in ("2 of 12 are held out", "16.67%", "requested: 30.00%", "[1,121 characters]", "no <text>"):
        assert part in page, part
    assert f"training from {100 / 130:.4g} to {10_000 / 130:.4g}" in page, "bars are shares of each split"
