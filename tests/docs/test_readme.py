"""README.zh-CN.md says the same as README.md, and a package index gets it without links that lead nowhere."""

import re
from pathlib import Path

import pytest

from setup import RELATIVE, description
from tests.support.pages import Page


@pytest.fixture(scope="module")
def english(root: Path) -> Page:
    """README.md."""
    return Page(root / "README.md")


@pytest.fixture(scope="module")
def chinese(root: Path) -> Page:
    """README.zh-CN.md."""
    return Page(root / "README.zh-CN.md")


def test_languages_have_the_same_code_headings_links_tables_and_numbers(english: Page, chinese: Page) -> None:
    assert len(english.blocks) >= 4 and chinese.blocks == english.blocks
    headings, links, numbers = [], [], []
    for page in (english, chinese):
        headings.append(len(re.findall(r"^## ", page.prose, re.MULTILINE)))
        links.append([link for link in page.links if not link.startswith("README")])
        numbers.append({number for number in _numbers(page.prose) if len(number) > 1})
    assert headings[0] == headings[1] and links[0] == links[1] and numbers[0] == numbers[1]
    assert len(numbers[0]) > 20 and len(english.tables) == len(chinese.tables) > 12
    for line, other in zip(english.tables, chinese.tables, strict=True):
        assert _numbers(line) == _numbers(other), line
        assert line.count("|") == other.count("|")


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
