"""Markdown pages of the repository (text, links, headings, code), and the text of an HTML page."""

import html
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        return FENCE.sub("", self.text)

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and content of each code block."""
        return [(language, content) for _, language, content in FENCE.findall(self.text)]

    @cached_property
    def inline(self) -> list[str]:
        return INLINE.findall(self.prose)

    @cached_property
    def links(self) -> list[str]:
        return LINK.findall(INLINE.sub("", self.prose))

    @cached_property
    def anchors(self) -> set[str]:
        """Anchors of the headings, as GitHub makes them."""
        return {_slug(heading) for heading in HEADING.findall(self.prose)}

    @cached_property
    def tables(self) -> list[str]:
        return [line for line in self.prose.splitlines() if line.startswith("|")]


def pages_of(root: Path) -> list[Page]:
    """Returns the pages in the repository's root and under docs/."""
    return [Page(path) for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])]


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")


def words(folder: Path) -> str:
    """Returns the text of the page without its markup."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)))
