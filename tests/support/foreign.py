"""Text from outside in every field of an artifact, and the structure of what is made of it."""

import ast
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from markdown_it import MarkdownIt

from longmlm.escaping import INVISIBLE

PLAIN = "plain"
BLOCKS = (
    "x\"'\n\n## Use\n\n```python\nraise SystemExit(9)\n```\n~~~\n<script>a(1)</script><!-- \n---\nlicense: e\n---\n"
)
CONTROLS = "\x1b[2J\x1b]0;title\x07\x9b1A\u202e\r\u2028| a | b |\n| - | - |\n"
INLINES = "[l](http://e.vil) ![i](x) `c` ``d`` $x$ *b* __u__ {{ 7 * 7 }} {% raw %} &amp; www.e.vil a@b.c ]]> \\ "
STARTS = ("# ", "- ", "1. ", "+ ", "===\n", "---\n", "\tcode ", "> ", "_", "`", "| ", "[x]: ", "~~~ ", "$$", '"', "\\")
HOSTILE = (BLOCKS + CONTROLS + INLINES, *STARTS)


def with_text(value: Any, hint: Any, text: str) -> Any:
    """Returns the value with `text` before each string that its type allows to be any text; choices stay."""
    kind, parts = _kind(value, hint), get_args(hint)
    match value:
        case None:
            return text if kind is str else None
        case str() | Path():
            return type(value)(f"{text}{value}") if kind in (str, Path) else value
        case Mapping() if len(parts) == 2:
            return {with_text(key, parts[0], text): with_text(item, parts[1], text) for key, item in value.items()}
        case list() | tuple() if parts:
            kinds = parts if len(parts) == len(value) and parts[-1] is not ... else [parts[0]] * len(value)
            return type(value)(with_text(item, kind, text) for item, kind in zip(value, kinds, strict=True))
    return _fields_with_text(value, text) if is_dataclass(value) else value


OF_GROUPS = ("groups", "gains", "base_chunks_by_occurrence")  # fields whose keys are names of groups of tokens


def _fields_with_text(value: Any, text: str) -> Any:
    hints = {name: Any if name in OF_GROUPS else hint for name, hint in get_type_hints(type(value)).items()}
    changed = {item.name: with_text(getattr(value, item.name), hints[item.name], text) for item in fields(value)}
    with suppress(ValueError):  # settings of which only one may be given
        return replace(value, **changed)
    return replace(value, **{name: item for name, item in changed.items() if getattr(value, name) is not None})


def _kind(value: object, hint: Any) -> Any:
    """Returns the type of a union that the value has, or could have if it is None."""
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return type(value) if hint is Any else hint
    kinds = get_args(hint)
    return next((kind for kind in kinds if kind in (str, Path) and isinstance(value, str | Path | None)), type(value))


def card_structure(card: str) -> object:
    """Returns the keys of a card's metadata, its Markdown elements, and its code without the literals."""
    _, metadata, text = re.split(r"^---$\n", card, maxsplit=2, flags=re.MULTILINE)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inline = [[part.type for part in token.children or () if part.type != "text"] for token in tokens]
    blocks = [(token.type, token.tag, token.info, parts) for token, parts in zip(tokens, inline, strict=True)]
    codes = [without_literals(token.content) for token in tokens if token.type == "fence" and token.info == "python"]
    assert INVISIBLE.findall(card) == [], "characters that control a terminal"
    return _keys(yaml.safe_load(metadata)), blocks, codes


def without_literals(code: str) -> str:
    """Returns the syntax tree of Python code, in which all literals are equal."""
    return re.sub(r"value=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", "value=LITERAL", ast.dump(ast.parse(code)))


def _keys(content: Any) -> object:
    if isinstance(content, dict):
        return {key: _keys(value) for key, value in content.items()}
    return [_keys(item) for item in content] if isinstance(content, list) else type(content).__name__


def page_structure(page: str) -> list[tuple[str, list[str]]]:
    """Returns the elements of a page with the names of their attributes, without drawings and optional line breaks."""
    elements = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            elements.append((tag, sorted(name for name, _ in attrs)))

    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert not [svg for svg in drawings if "<script" in svg or INVISIBLE.search(svg)]
    assert INVISIBLE.findall(page) == []
    reader = Reader()
    reader.feed(re.sub(r"<svg.*?</svg>|<wbr>", "", page, flags=re.DOTALL))
    reader.close()
    return elements
