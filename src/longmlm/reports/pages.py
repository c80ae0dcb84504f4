"""Self-contained HTML pages, and the templates from which they and the model card are rendered.

Pages adapt to light and dark, wide and narrow screens, and have no scripts. Text is escaped in HTML, not in Markdown.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from longmlm.artifacts.accuracy import FilledMask
from longmlm.folders import partial_of
from longmlm.reports.charts import NARROW, WIDE, Chart, svg
from longmlm.reports.tables import Table

PAGE_FILE = "index.html"
WHITE_SPACE = {" ": "␣", "\n": "↵", "\t": "⇥", "": "∅"}


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure: its name, its value, and a note in small print after the value."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, a paragraph, and a table, a chart, filled masks or facts by name."""

    title: str
    text: str
    content: Table | Chart | Sequence[FilledMask] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Head:
    """What a page is about: its title, a sentence, the finding (good, bad or neither) and the key figures."""

    title: str
    lead: str
    finding: str = ""
    is_good: bool | None = None
    tiles: Sequence[Tile] = ()


def page(head: Head, sections: Sequence[Section], made_by: str) -> str:
    """Returns an HTML page; `made_by` is the command with its settings, printed in the footer."""
    drawings = {"broad": WIDE, "narrow": NARROW}
    return render("page.html", head=head, sections=sections, made_by=made_by, drawings=drawings, svg=svg)


def write_page(text: str, path: Path) -> None:
    """Writes a page atomically; an identical page is left untouched."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    partial = partial_of(path)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def render(template: str, **values: object) -> str:
    """Returns the template filled in; raises UndefinedError when a value that it uses is missing."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("longmlm.reports"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["visible"] = _visible
    return environment


def _visible(text: str) -> str:
    """Returns a text without surrounding white space; white space alone is shown as symbols."""
    return text.strip() or "".join(WHITE_SPACE.get(character, character) for character in text) or WHITE_SPACE[""]
