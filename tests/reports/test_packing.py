"""The packing report: the numbers that were counted, and no more than was counted."""

import html
import re
from dataclasses import replace

import pytest

from longmlm.artifacts.rows import Families, Family, RowsManifest
from longmlm.reports.packing import Example, packing_page, packing_report
from tests.support.rows import rows_manifest

EXAMPLE = Example(500, 2, f"<s>It rained.</s>{'x' * 2_000}</s>")


def manifest() -> RowsManifest:
    made = rows_manifest(fill_rate=0.925)
    held_out = replace(made.report.held_out, documents=2, rows=20, fill_rate=0.5)
    return replace(made, report=replace(made.report, held_out=held_out, set_aside={"no <text>": 7}))


@pytest.fixture(scope="module")
def full_page() -> str:
    return packing_page(manifest(), EXAMPLE, "the command")


def words(page: str) -> str:
    text = re.sub(r"<style>.*?</style>|<wbr>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "|", text))


def test_page_shows_lengths_fill_cut_sentences_and_sources(full_page: str) -> None:
    said = words(full_page)
    for part in ("150 ", "of 512", "128 k", "86.8%", "no <text>", "7", "the command"):
        assert f"|{part}|" in said, part
    assert "|6 |of 4,000|" in said, "sentences that were cut"
    for titles in (
        "tokens in a document, from … to twice as many",
        "documents (%)",
        "share of a row that is filled (%)",
    ):
        assert said.count(f"|{titles}|") == 2
    assert "novels-0.jsonl, novels-1.jsonl, novels-2.jsonl and 2 more files" in said
    assert "owner/laws, train" in said
    assert "|75.0%|" in said and "|25.0%|" in said
    assert "/somewhere" not in said


def test_page_shows_copies_an_example_and_the_held_out_share_with_the_one_asked_for(full_page: str) -> None:
    said = words(full_page)
    assert "|exact copies of documents|4|4|" in said.replace("|\n|", "|").replace("||", "|")
    assert "|16.67% |requested: 30.00%|" in said
    assert "2 of 12 are held out" in said
    assert "<s>It rained.</s>" in said
    assert "[1,121 characters]" in said


def test_bars_are_shares_of_each_split_and_empty_ends_are_left_out(full_page: str) -> None:
    labels = re.findall(r'aria-label="([^"]*)"', full_page)
    lengths, fills = (next(label for label in labels if label.startswith(name)) for name in ("Document", "Fill"))
    assert "training from 10 to 40 (minimum 10, maximum 40); held-out from 10 to 40" in lengths
    assert f"training from {100 / 130:.4g} to {10_000 / 130:.4g}" in fills


def test_splits_may_have_documents_of_different_lengths() -> None:
    known = manifest()
    held_out = replace(known.report.held_out, document_lengths=(0, 0, 2))
    known = replace(known, report=replace(known.report, held_out=held_out))
    label = next(
        one for one in re.findall(r'aria-label="([^"]*)"', packing_page(known, EXAMPLE, "")) if "Document" in one
    )
    assert "training from 0 to 40" in label
    assert "held-out from 100 to 0" in label


def test_page_says_whether_rows_cross_documents() -> None:
    known = manifest()
    assert "A row may hold several documents" in words(packing_page(known, EXAMPLE, ""))
    known = replace(known, plan=replace(known.plan, packing="doc-sentences"))
    assert "No row holds parts of two documents" in words(packing_page(known, EXAMPLE, ""))


def test_text_ends_with_what_was_set_aside_and_the_speed() -> None:
    unknown, aside, speed = packing_report(manifest()).splitlines()[-3:]
    assert (aside, speed) == ("records set aside: 7 x no <text>", "1,000 tokens/s in 2.0 s")
    assert unknown.startswith("unknown tokens: 0.00% of novels-0.jsonl") and unknown.endswith(
        "3.00% of owner/laws, train"
    )


def test_the_largest_families_of_copies_are_shown_where_copies_were_looked_for() -> None:
    known = manifest()
    assert "families" not in packing_report(known) + packing_page(known, EXAMPLE, "")
    families = Families(count=1234, leaks=5, largest=(Family(size=6789, words="A <b>", origin="laws.jsonl:77"),))
    known = replace(known, report=replace(known.report, duplicates=families))
    assert "families of copies: 1,234; leaks prevented: 5" in packing_report(known).splitlines()
    page = packing_page(known, EXAMPLE, "")
    assert "6,789" in words(page) and "A &lt;b&gt;" in page and "<b>" not in page
    assert "1,234 in all" in words(page) and "laws.jsonl:77" in words(page)
