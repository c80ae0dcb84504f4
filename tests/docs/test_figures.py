"""Each figure of README, expectations and experiments 11 and 12 follows from kept files, by docs/scripts/figures.py."""

import re

import pytest
from figures import FILLED, PAGES, ROOT, TABLES, filled, named, quoted

from tests.support.pages import FENCE, INLINE, Page

DECIMAL = re.compile(r"(?<![\w.,-])[+−]?\d+\.\d+(?!\w|\.\d)")
NO_RESULTS = {
    "README.md": {"3.11", "3.13"},  # versions of Python
    "README.zh-CN.md": {"3.11", "3.13"},
    "expectations.md": {"0.8"},  # the size of an error, stated as approximate
}
PROSE = {path.name: path for path in PAGES}


@pytest.mark.parametrize("name", PROSE)
def test_tables_are_up_to_date(name: str) -> None:
    text = PROSE[name].read_text(encoding="utf-8")
    found = {match[2] for match in FILLED.finditer(text)}
    assert found and found <= TABLES.keys()
    assert text == filled(text)


def test_every_table_stands_in_a_page() -> None:
    assert {match[2] for path in PAGES for match in FILLED.finditer(path.read_text(encoding="utf-8"))} == TABLES.keys()


@pytest.mark.parametrize("name", quoted())
def test_pages_quote_the_findings_as_they_were_measured(name: str) -> None:
    text = " ".join(Page(ROOT / "docs" / name).text.split())
    assert [finding for finding in quoted()[name] if finding not in text] == []


@pytest.mark.parametrize("name", NO_RESULTS)
def test_sentences_have_the_figures_of_the_runs_and_no_others(name: str) -> None:
    figures = named()[name.replace(".zh-CN", "")]
    if name in named():
        assert [figure for figure in figures if figure not in " ".join(Page(PROSE[name]).text.split())] == []
    prose = INLINE.sub("", FENCE.sub("", FILLED.sub("", PROSE[name].read_text(encoding="utf-8"))))
    numbers = set(DECIMAL.findall(re.sub(r"\]\([^)]*\)", "]", prose)))
    assert len(numbers) >= 5
    assert numbers - {number for figure in figures for number in DECIMAL.findall(figure)} - NO_RESULTS[name] == set()
