"""Write docs/settings.md, with a table of every setting of every stage: python docs/scripts/settings_reference.py."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from longmlm.cli import FEATURES, STAGES
from longmlm.config import STAGES as PIPELINE_STAGES
from longmlm.options import OWN_NAME, explanations, named_fields, sections
from longmlm.settings.masking import UNUSED
from longmlm.settings.pipeline import PLACEHOLDER as EXAMPLE
from longmlm.settings.pipeline import Pipeline, stage_tables
from longmlm.settings.tables import Table, default_of, leaves, table_of

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

The column "in a pipeline" shows the value that a setting has in a pipeline file that does not set it, where this is not
the default, for `model = "MODEL"`, `corpus = ["TEXT"]`, `length = 1536` and `output = "OUTPUT"`. The keys in brackets
are those from which the value is computed.

This page is generated from `src/longmlm/settings/`. Those of compare are [on its page](compare.md#settings).
"""
OTHERS = {name: kind for name, kind in FEATURES.items() if name != "compare"}  # whose page lists its settings
TYPES: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "boolean"}


def settings_page() -> str:
    """Returns the page as Markdown."""
    parts, derived = [HEAD], _values_in_pipeline()
    for stage, kind in {"pipeline file": Pipeline, **STAGES, **OTHERS}.items():
        parts.append(f"## {stage}\n\n{_paragraph(kind)}\n")
        for path, heading, part, unused in _sections(stage, kind):
            names = (item.name for item in fields(part))
            cells = {name: derived.get(".".join(filter(None, (stage, path, name))), "") for name in names}
            parts.append(f"{heading}{_table(part, cells, unused)}")
    return "\n".join(parts)


def settings_table(kind: type) -> str:
    """Returns the table of one section of settings; each page about a command that can be left out has its own."""
    return _table(kind, {})


def _sections(
    stage: str, kind: type, path: str = "", is_array: bool = False, unused: Collection[str] = ()
) -> Iterator[tuple[str, str, type, Collection[str]]]:
    """Yields path, heading, class and unused settings of a stage's top level and of each section, parents first."""
    name = f"[[{path}]]" if is_array else f"[{path}]"
    yield path, (f"### {stage}: `{name}`\n\n{_paragraph(kind)}\n\n" if path else ""), kind, unused
    for item in fields(kind):
        for section in sections(item):
            dotted, origin = f"{path}.{item.name}".lstrip("."), get_origin(item.type)
            dotted = f"{dotted}.{OWN_NAME}" if origin is dict else dotted
            yield from _sections(stage, section, dotted, origin is tuple, item.metadata.get(UNUSED, ()))


def _table(kind: type, in_pipeline: Mapping[str, str], unused: Collection[str] = ()) -> str:
    """Returns a line for each setting of one section; empty for a section that only contains others."""
    head, explained = ["setting", "type", "default", "meaning"], explanations(kind)
    rows = [
        [f"`{item.name}`", _type(item.type), _default(item), explained[item.name]]
        for item in _own_first(kind)
        if not [*sections(item)] and item.name not in unused
    ]
    if any(in_pipeline.values()):
        head.insert(3, "in a pipeline")
        for row in rows:
            row.insert(3, in_pipeline[row[0].strip("`")])
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], ""]) if rows else ""


def _values_in_pipeline() -> dict[str, str]:
    """Returns the cells of the column "in a pipeline", by dotted name."""
    values, origins = _derived(EXAMPLE, {}), dict[str, dict[str, None]]()
    for key, (base, given) in _variants():
        for name, value in _derived(base, given).items():
            if name != key and value != values.get(name):
                origins.setdefault(name, {})[f"`{key}`"] = None
    settings = {f"{stage}.{name}": item for stage, kind in STAGES.items() for name, item in named_fields(kind)}
    cells = {name: f"`{json.dumps(value)}`" for name, value in values.items() if value != default_of(settings[name])}
    for name, keys in origins.items():
        cell = f"`{json.dumps(values[name])}`" if name in values else "–"
        cells[name] = f"{cell} ({', '.join(keys)})"
    return cells


def _variants() -> Iterator[tuple[str, tuple[Pipeline, Table]]]:
    """Yields the name of each setting with a pipeline in which it has another value than in the example."""
    for item in fields(Pipeline):
        for value in _values(item.type) if item.name != "extension" else ():  # it decides which stages there are
            yield item.name, (replace(EXAMPLE, **{item.name: value}), {})
    for stage in PIPELINE_STAGES.values():
        for name, item in named_fields(STAGES[stage]):
            if not [*sections(item)] and not name.startswith("recipe.sources."):
                for value in _values(item.type):
                    yield f"{stage}.{name}", (EXAMPLE, table_of(f"{stage}.{name}", value))


def _values(annotation: Any) -> Iterator[Any]:
    """Yields values of a type that no setting has by default; all choices of a Literal."""
    examples: dict[Any, Any] = {str: "OTHER", int: 1024, float: 0.9, bool: True}
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is tuple:
        yield ("OTHER",)
    elif annotation in examples:
        yield examples[annotation]
    else:
        for part in get_args(annotation):
            yield from _values(part)


def _derived(base: Pipeline, given: Table) -> dict[str, Any]:
    """Returns the settings of all stages by dotted name; of the sources, those of the first."""
    tables = stage_tables(base, given)
    [source, *_] = tables["prepare"]["recipe"].pop("sources")
    return {**dict(leaves(tables)), **dict(leaves(source, "prepare.recipe.sources."))}


def _own_first(kind: type) -> "list[Field[Any]]":
    return sorted(fields(kind), key=lambda item: item.name not in kind.__annotations__)


def _type(annotation: Any) -> str:
    """Returns the type as TOML names it, or the choices."""
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return " or ".join(_type(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"array of {_type(get_args(annotation)[0])}s"
    return "table" if get_origin(annotation) is dict else TYPES[annotation]


def _default(item: "Field[Any]") -> str:
    default = default_of(item)
    if default is MISSING:
        return "**required**"
    return "–" if default is None else f"`{json.dumps(default)}`"


def _paragraph(kind: type) -> str:
    return " ".join(str(kind.__doc__).split())


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(PAGE)
