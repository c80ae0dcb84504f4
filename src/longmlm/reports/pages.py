"""Self-contained HTML pages, and the templates from which they and the model card are rendered.

Pages adapt to light and dark, wide and narrow screens, and have no scripts. All values are escaped for the HTML or the
Markdown of their template, except Markup.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from huggingface_hub import CardData
from huggingface_hub.utils import yaml_dump
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from longmlm.artifacts.accuracy import FilledMask
from longmlm.errors import counted
from longmlm.escaping import author_markdown, markdown, markdown_code, markup, printable, single_line
from longmlm.folders import write_text
from longmlm.hubs.transfers import redact
from longmlm.reports.charts import NARROW, WIDE, Chart, svg
from longmlm.reports.tables import Table
from longmlm.settings.publishing import redacted_address
from longmlm.settings.shipped import bundled_name

FOLDER_SCHEME = "folder:"
WHITE_SPACE = {" ": "␣", "\n": "↵", "\t": "⇥", "": "∅"}
PUNCTUATION = re.compile(r"[_/-]|\.(?!\d)")


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
    """What a page is about: its title, a sentence, the finding (good, bad or neither) and the key figures.

    A browser reloads the page every `refresh_seconds`, if given.
    """

    title: str
    lead: str
    finding: str = ""
    is_good: bool | None = None
    tiles: Sequence[Tile] = ()
    refresh_seconds: int | None = None


Draw = Callable[[Chart, tuple[float, float]], str]


def page(head: Head, sections: Sequence[Section], made_by: str, draw: Draw = svg) -> str:
    """Returns an HTML page; `made_by` is the command with its settings, printed in the footer.

    `draw` returns a chart as an SVG element of the given size.
    """
    drawings = {"broad": WIDE, "narrow": NARROW}
    return str(render("page.html", head=head, sections=sections, made_by=made_by, drawings=drawings, svg=draw))


def public_path(path: str) -> str:
    """Returns the last part of an absolute path, and other paths and names as they are, for a page that others read.

    A file in this package is named bundled:NAME.
    """
    if path.startswith(FOLDER_SCHEME):
        return FOLDER_SCHEME + public_path(path.removeprefix(FOLDER_SCHEME))
    path = bundled_name(path)
    return Path(path).name or path if Path(path).is_absolute() else path


def without_paths(value: Any) -> Any:  # of any type that settings have
    """Returns settings, in tables and lists, with the last parts of absolute paths, and a target without passwords."""
    match value:
        case dict():
            public = {name: without_paths(item) for name, item in value.items()}
            return public | ({"publish": redact(redacted_address(public["publish"]))} if public.get("publish") else {})
        case list() | tuple():
            return [without_paths(item) for item in value]
        case str():
            return public_path(value)
    return value


def made_with(command: str, settings: Mapping[str, Any]) -> str:
    """Returns a command with its settings, for the footer of a page that others read."""
    return f"# longmlm {command} settings.toml\n{tomli_w.dumps(without_paths(settings))}"


def write_page(text: str, path: Path) -> None:
    """Writes a page atomically; an identical page is left untouched."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def front_matter(kind: type[CardData], **fields: Any) -> Markup:
    """Returns the metadata of a card as YAML in which every text is one line."""
    return markup(yaml_dump(_in_single_lines(kind(**fields).to_dict()), sort_keys=False).strip())


def _in_single_lines(value: Any) -> Any:  # of any type that YAML has
    match value:
        case str():
            return single_line(value)
        case dict():
            return {key: _in_single_lines(item) for key, item in value.items()}
        case list():
            return [_in_single_lines(item) for item in value]
    return value


def render(template: str, package: str = "longmlm.reports", **values: object) -> Markup:
    """Returns the template of a package filled in; raises UndefinedError when a value that it uses is missing.

    It may extend a template of this package.
    """
    return markup(_environment(package, Path(template).suffix).get_template(template).render(values))


@functools.cache
def _environment(package: str, suffix: str) -> Environment:
    """Returns the templates with this suffix: .md, where values are escaped for Markdown, or .html."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (package, "longmlm.reports")]),
        autoescape=True,
        finalize=functools.partial(_escaped, suffix == ".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Any] = {  # Any: functions of many types
        "author": author_markdown,
        "code": markdown_code,
        "counted": counted,
        "printable": printable,
        "breakable": _breakable,
        "visible": visible,
    }
    environment.filters.update(filters)
    return environment


def _escaped(is_markdown: bool, value: object) -> object:
    """Returns a value escaped for Markdown, or printable for Jinja to escape it for HTML; Markup as it is."""
    if isinstance(value, Markup):
        return value
    return markdown(str(value)) if is_markdown else printable(str(value))


def _breakable(name: str) -> Markup:
    """Returns a name that narrow screens break after its punctuation, but not within a word or a number."""
    return Markup(PUNCTUATION.sub(r"\g<0><wbr>", str(escape(printable(name)))))  # noqa: S704 - it was escaped


def visible(text: str) -> str:
    """Returns a text without surrounding white space; white space alone is shown as symbols."""
    return text.strip() or "".join(WHITE_SPACE.get(character, character) for character in text) or WHITE_SPACE[""]
