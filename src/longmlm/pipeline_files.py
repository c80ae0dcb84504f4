"""Pipeline files: print a commented one for a user's model and text, and list the shipped ones."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import tomli_w

from longmlm.config import parse
from longmlm.options import explanations, sections
from longmlm.settings.pipeline import Pipeline, ResolvedPipeline, recommended
from longmlm.settings.shipped import BUNDLED, PACKAGE, SHIPPED

NOTE = (
    "# Recommended settings of the stages: remove the # to change one; `longmlm run FILE --help` explains the others."
)


def pipeline_file(arguments: Sequence[str], check: Callable[[Pipeline], None] = lambda _: None) -> str:
    """Returns a pipeline file with the base keys from the options; the recommended settings are commented out.

    The docstring of each setting stands above it. Raises ConfigError for invalid options; `check` may refuse
    what they describe.
    """
    base = parse(Pipeline, arguments, "longmlm init", {"output": "out/mine"})
    check(base)
    lines = [f"# {Pipeline.__doc__}", "# Run it with: longmlm run FILE"]
    for name, text in explanations(Pipeline).items():
        value = getattr(base, name)
        is_default = name not in ("corpus", "output") and value == Pipeline.__dataclass_fields__[name].default
        assignment = _assignment(name, "..." if value is None else value)
        lines += ["", f"# {text}", f"#{assignment}" if is_default else assignment]
    lines += ["", NOTE]
    kinds = {item.name: part for item in fields(ResolvedPipeline) for part in sections(item)}
    for stage, table in recommended(base, {}).items():
        lines += _tables(stage, kinds[stage], table)
    return "\n".join(lines)


def _tables(name: str, kind: type, table: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a table and its subtables, with every key commented out."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own:
        yield from ("", f"[{name}]")
    for key, value in own.items():
        yield from (f"# {explanations(kind)[key]}", f"#{_assignment(key, value)}")
    for item in fields(kind):
        if isinstance(table.get(item.name), dict):
            yield from _tables(f"{name}.{item.name}", next(sections(item)), table[item.name])


def _assignment(key: str, value: object) -> str:
    text = tomli_w.dumps({key: list(value) if isinstance(value, tuple) else value}).strip()
    return text.replace(f"{PACKAGE / 'bundled'}/", BUNDLED)


def shipped_pipelines() -> str:
    """Returns a line for each shipped pipeline and overlay: its name and the first line of its comment."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SHIPPED.glob("*.toml"))}
    lines = {name: f"  {name:20}{text.splitlines()[0].removeprefix('# ')}" for name, text in texts.items()}
    pipelines = [name for name, text in texts.items() if "output" in tomllib.loads(text)]
    overlays = [name for name in texts if name not in pipelines]
    parts = ["pipelines: longmlm run NAME", *(lines[name] for name in pipelines)]
    parts += ["overlays: longmlm run NAME OVERLAY", *(lines[name] for name in overlays)] if overlays else []
    return "\n".join(parts)
