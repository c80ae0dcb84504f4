"""Rendering of the templates beside this module: HTML pages, in which all text is escaped, and Markdown cards."""

import functools

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

WHITE_SPACE = {" ": "␣", "\n": "↵", "\t": "⇥", "": "∅"}


def render(template: str, **values: object) -> str:
    """Returns the template filled with the values; a value that it needs and that is missing is an error."""
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
    """Returns a piece of text without the white space around it, which is shown only where there is nothing else."""
    return text.strip() or "".join(WHITE_SPACE.get(character, character) for character in text) or WHITE_SPACE[""]
