"""README.md is short, its numbers were measured, and README.zh-CN.md says the same."""

import re
from pathlib import Path

import pytest

from setup import RELATIVE, description
from tests.support.pages import Page

MEASURED = re.compile(r"\d+\.\d+ ± \d+\.\d+")
SHORTEST, LONGEST = 600, 800


@pytest.fixture(scope="module")
def english(root: Path) -> Page:
    """README.md."""
    return Page(root / "README.md")


@pytest.fixture(scope="module")
def chinese(root: Path) -> Page:
    """README.zh-CN.md."""
    return Page(root / "README.zh-CN.md")


def test_readme_is_read_in_minutes(english: Page) -> None:
    """Words of prose and tables count, code blocks, targets of links and HTML do not: see Page.num_words."""
    assert SHORTEST <= english.num_words <= LONGEST


def test_words_are_counted_as_stated(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# One\n\ntwo `three` [four five](not/this) – <b>six</b>\n\n| seven |\n|---|\n\n```\nnot this\n```\n"
    )
    assert Page(path).num_words == 7


def test_accuracies_of_the_long_model_are_those_of_the_experiment(english: Page, root: Path) -> None:
    experiment = Page(root / "docs" / "experiments" / "0010-recovery.md")
    rows = {line.split("|")[1].strip(): MEASURED.findall(line) for line in experiment.tables if MEASURED.search(line)}
    lines = [line for line in english.tables if MEASURED.search(line)]
    assert len(lines) == 5
    for line in lines[:4]:
        name = line.split("|")[1].strip()
        assert MEASURED.findall(line) == rows[name][: len(MEASURED.findall(line))]


def test_languages_have_the_same_code_and_headings(english: Page, chinese: Page) -> None:
    assert len(english.blocks) >= 4
    assert chinese.blocks == english.blocks
    assert len(re.findall(r"^## ", chinese.prose, re.MULTILINE)) == len(
        re.findall(r"^## ", english.prose, re.MULTILINE)
    )


def test_languages_have_the_same_links(english: Page, chinese: Page) -> None:
    without_other = [[link for link in page.links if not link.startswith("README")] for page in (english, chinese)]
    assert without_other[0] == without_other[1]


def test_languages_have_the_same_tables(english: Page, chinese: Page) -> None:
    assert len(english.tables) == len(chinese.tables) > 20
    for line, other in zip(english.tables, chinese.tables, strict=True):
        assert _numbers(line) == _numbers(other), line
        assert line.count("|") == other.count("|")


def test_languages_give_the_same_numbers(english: Page, chinese: Page) -> None:
    numbers = {number for number in _numbers(english.prose) if len(number) > 1}
    assert len(numbers) > 20
    assert numbers == {number for number in _numbers(chinese.prose) if len(number) > 1}


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d.,]*\d|\d", re.sub(r"\]\([^)]*\)", "]", text))


@pytest.mark.parametrize("repository", [None, "https://code.example/longmlm"])
def test_a_package_index_gets_the_text_without_a_link_that_leads_nowhere(
    english: Page, tmp_path: Path, repository: str | None
) -> None:
    (tmp_path / "page.md").write_text(description(english.text, repository), encoding="utf-8")
    links = Page(tmp_path / "page.md").links
    relative = [link for link in english.links if not link.startswith("https://")]
    assert len(relative) > 20
    assert all(link.startswith("https://") for link in links)
    assert len(links) == len(english.links) - (0 if repository else len(relative))
    if repository:
        assert f"{repository}/blob/HEAD/docs/method.md#sliding-window-attention" in links
        assert f"{repository}/raw/HEAD/docs/pictures/minilm-1536.svg" in links
    assert RELATIVE.search(english.text) and not RELATIVE.search(description(english.text, repository))
