"""HTML pages that need no other file: light and dark, wide and narrow, without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longmlm.folders import PARTIAL
from longmlm.reports.charts import NARROW, WIDE, Chart, svg
from longmlm.reports.rendering import render
from longmlm.reports.tables import Table

PAGE_FILE = "index.html"


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the chief figures: its name, its value, and a note in small print after the value."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """Text around a hidden word, the word, and guesses with their probabilities, the likeliest first."""

    name: str
    before: str
    hidden: str
    after: str
    guesses: Sequence[tuple[str, float]]

    @property
    def rank(self) -> int | None:
        """Rank of the hidden word among the guesses, 1 for the likeliest; None if it was not guessed."""
        texts = [text for text, _ in self.guesses]
        return texts.index(self.hidden) + 1 if self.hidden in texts else None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, a paragraph, and a table, a chart, passages or facts by name."""

    title: str
    text: str
    content: Table | Chart | Sequence[Passage] | Mapping[str, str]

    @property
    def kind(self) -> Literal["table", "chart", "facts", "passages"]:
        """How the content is rendered."""
        match self.content:
            case Table():
                return "table"
            case Chart():
                return "chart"
            case Mapping():
                return "facts"
            case _:
                return "passages"


@dataclass(frozen=True, slots=True)
class Head:
    """What a page is about: title, one line below it, the finding (good, bad or neither) and the chief figures."""

    title: str
    lead: str
    finding: str = ""
    is_good: bool | None = None
    tiles: Sequence[Tile] = ()


def page(head: Head, sections: Sequence[Section], made_by: str) -> str:
    """Returns an HTML page; `made_by` is the command with its settings, printed at the foot."""
    drawings = {"broad": WIDE, "narrow": NARROW}
    return render("page.html", head=head, sections=sections, made_by=made_by, drawings=drawings, svg=svg)


def write_page(text: str, path: Path) -> None:
    """Writes a page so that a reader sees the old one or the new one; an identical page is not touched."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    partial = path.with_name(path.name + PARTIAL)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
