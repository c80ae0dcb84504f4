"""Write docs/settings.md, with a table of every setting of every stage: python docs/scripts/settings_reference.py."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from longmlm.cli import STAGES
from longmlm.config import OWN_NAME
from longmlm.options import explanations, sections
from longmlm.settings.compare import CompareSettings
from longmlm.settings.downstream import DownstreamConfig
from longmlm.settings.pipeline import Pipeline

PAGE = Path(__file__).parents[1] / "settings.md"
HEAD = """\
# Settings

Every setting, with its type and default. `longmlm STAGE --help` prints the same text. In a pipeline file, the required
settings of the stages are derived from the base keys.

How to write a setting, for example `num_steps` in section `[recipe]` of pretrain:

| where | how |
|---|---|
| in a pipeline file | `num_steps` in `[pretrain.recipe]` |
| in a settings file of pretrain alone | `num_steps` in `[recipe]` |
| on the command line of pretrain | `--recipe.num-steps` |

This page is generated from `src/longmlm/settings/`.
"""
OTHERS = {"compare": CompareSettings, "downstream": DownstreamConfig}
TYPES: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "boolean"}


def settings_page() -> str:
    """Returns the page as Markdown."""
    parts = [HEAD]
    for stage, kind in {"pipeline file": Pipeline, **STAGES, **OTHERS}.items():
        parts.append(f"## {stage}\n\n{_paragraph(kind)}\n")
        parts += [f"{heading}{_table(part)}" for heading, part in _sections(stage, kind)]
    return "\n".join(parts)


def _sections(stage: str, kind: type, name: str = "") -> Iterator[tuple[str, type]]:
    """Yields the heading and the class of a stage's top level and of each of its sections, parents first."""
    yield (f"### {stage}: `{name}`\n\n{_paragraph(kind)}\n\n" if name else ""), kind
    path = name.strip("[]")
    for item in fields(kind):
        for section in sections(item):
            dotted = f"{path}.{item.name}".lstrip(".")
            origin = get_origin(item.type)
            dotted = f"[{dotted}]" if origin is tuple else f"{dotted}.{OWN_NAME}" if origin is dict else dotted
            yield from _sections(stage, section, f"[{dotted}]")


def _table(kind: type) -> str:
    """Returns a line for each setting of one section; empty for a section that only contains others."""
    lines = [_line(item, explanations(kind)) for item in _own_first(kind) if not [*sections(item)]]
    head = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *lines, ""]) if lines else ""


def _own_first(kind: type) -> "list[Field[Any]]":
    return sorted(fields(kind), key=lambda item: item.name not in kind.__annotations__)


def _line(item: "Field[Any]", docstrings: dict[str, str]) -> str:
    cells = (f"`{item.name}`", _type(item.type), _default(item), docstrings[item.name])
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _type(annotation: Any) -> str:
    """Returns the type as TOML names it, or the choices."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return " or ".join(_type(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"array of {_type(get_args(annotation)[0])}s"
    return "table" if get_origin(annotation) is dict else TYPES[annotation]


def _default(item: "Field[Any]") -> str:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    if default is MISSING:
        return "**required**"
    return "–" if default is None else f"`{json.dumps(default)}`"


def _paragraph(kind: type) -> str:
    return " ".join(str(kind.__doc__).split())


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(PAGE)
