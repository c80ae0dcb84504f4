"""Writes docs/settings.md, a table of every setting of every stage: python docs/scripts/settings_reference.py."""

import ast
import functools
import inspect
import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from longmlm.cli import STAGES
from longmlm.settings.pipeline import Pipeline

PAGE = Path(__file__).parents[1] / "settings.md"
HEAD = """\
# Settings

Every setting, with its type and default. `longmlm STAGE --help` prints the same text. A setting without a default must
be given; in a pipeline file, those of the stages follow from the base keys.

Where a setting stands, for `num_steps` in section `[recipe]` of pretrain:

| place | name |
|---|---|
| in a pipeline file | `num_steps` in `[pretrain.recipe]` |
| in a settings file of pretrain alone | `num_steps` in `[recipe]` |
| on the command line of pretrain | `--recipe.num-steps` |

This page is generated from `src/longmlm/settings/`.
"""
TYPES: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "boolean"}


def settings_page() -> str:
    """Returns the page as Markdown."""
    parts = [HEAD]
    for stage, kind in {"pipeline file": Pipeline, **STAGES}.items():
        parts.append(f"## {stage}\n\n{_paragraph(kind)}\n")
        parts += [f"{heading}{_table(part)}" for heading, part in _sections(stage, kind)]
    return "\n".join(parts)


def _sections(stage: str, kind: type, name: str = "") -> Iterator[tuple[str, type]]:
    """Yields the heading and the class of a stage's top level and of each of its sections, parents first."""
    yield (f"### {stage}: `{name}`\n\n{_paragraph(kind)}\n\n" if name else ""), kind
    path = name.strip("[]")
    for item in fields(kind):
        inner, is_list = _dataclass_in(item.type)
        if inner is not None:
            dotted = f"{path}.{item.name}".lstrip(".")
            yield from _sections(stage, inner, f"[[{dotted}]]" if is_list else f"[{dotted}]")


def _table(kind: type) -> str:
    """Returns a line for each setting of one section; empty for a section that only contains others."""
    lines = [_line(item, _docstrings(kind)) for item in _own_first(kind) if _dataclass_in(item.type)[0] is None]
    head = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _own_first(kind: type) -> "list[Field[Any]]":
    return sorted(fields(kind), key=lambda item: item.name not in kind.__annotations__)


def _line(item: "Field[Any]", docstrings: dict[str, str]) -> str:
    cells = (f"`{item.name}`", _type(item.type), _default(item), docstrings[item.name])
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _dataclass_in(annotation: Any) -> tuple[type | None, bool]:
    """Returns the dataclass that the annotation names, or None, and whether it is a tuple of them."""
    candidates = [part for part in (annotation, *get_args(annotation)) if is_dataclass(part)]
    return next(iter(candidates), None), get_origin(annotation) is tuple


def _type(annotation: Any) -> str:
    """Returns the type as TOML names it, or the choices."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return " or ".join(_type(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"array of {_type(get_args(annotation)[0])}s"
    return TYPES[annotation]


def _default(item: "Field[Any]") -> str:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    if default is MISSING:
        return "**required**"
    return "–" if default is None else f"`{json.dumps(default)}`"


@functools.cache
def _docstrings(kind: type) -> dict[str, str]:
    """Returns the docstring of each setting, which follows its declaration, those of base classes included."""
    found = {}
    for part in (part for part in reversed(kind.__mro__) if is_dataclass(part)):
        body = ast.parse(inspect.getsource(part)).body[0]
        assert isinstance(body, ast.ClassDef)
        for declared, text in zip(body.body, body.body[1:], strict=False):
            match declared, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    found[name] = " ".join(docstring.split())
    return found


def _paragraph(kind: type) -> str:
    return " ".join(str(kind.__doc__).split())


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(PAGE)
