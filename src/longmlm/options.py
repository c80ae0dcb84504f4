"""Command-line options, generated from the dataclasses of settings."""

import ast
import contextlib
import inspect
import io
import itertools
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from longmlm.errors import ConfigError
from longmlm.settings.tables import Table

TYPING: Any = typing  # types made at run time have no static form


def given_options(kind: type, shown: Mapping[str, Any], arguments: Sequence[str], usage: str) -> Table:
    """Returns only the settings that the options set, as a TOML table; --help shows `shown` as the defaults.

    Raises ConfigError with the name of the option.
    """
    import tyro

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            given = tyro.cli(_options(kind, shown), args=arguments, prog=usage, description=kind.__doc__)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(_unboxed(errors.getvalue(), kind).rstrip(".")) from None
    return _without_empty_tables(given)


def sections(item: Field) -> Iterator[type]:
    """Yields the dataclass of a setting that is a section, or an array of sections; nothing for other settings."""
    types: tuple[Any, ...] = (item.type, *get_args(item.type))
    yield from (part for part in types if isinstance(part, type) and is_dataclass(part))


def explanations(kind: type) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass and of its bases."""
    docstrings: dict[str, str] = {}
    for base in (base for base in reversed(kind.__mro__) if is_dataclass(base)):
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for item, text in itertools.pairwise(definition.body):
            match item, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    docstrings[name] = " ".join(words.split())
    return docstrings


def _options(kind: type, shown: Mapping[str, Any]) -> Any:
    """Returns a TypedDict of optional keys, so that tyro returns only the options that were given."""
    import tyro

    texts, options = explanations(kind), {}
    for item in fields(kind):
        section, value = next(sections(item), None), shown.get(item.name)
        if get_origin(item.type) is dict:  # tables with names of the user's: only files have them
            continue
        if section is None:
            described: Any = tyro.conf.arg(help=texts.get(item.name, ""), help_behavior_hint=_hint(item, shown))
            options[item.name] = TYPING.Annotated[item.type, described]
        elif get_origin(item.type) is tuple:
            tables = value if isinstance(value, list) and value else [{}]
            by_index = {str(index): _options(section, table) for index, table in enumerate(tables)}
            options[item.name] = _typed_dict(item.name, by_index)
        else:
            options[item.name] = _options(section, value if isinstance(value, Mapping) else {})
    return _typed_dict(kind.__name__, options, kind.__doc__)


def _typed_dict(name: str, keys: Table, doc: str | None = None) -> Any:
    kind = TYPING.TypedDict(name, keys, total=False)
    kind.__doc__ = doc
    return kind


def _hint(item: Field, shown: Mapping[str, Any]) -> str:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    value = shown.get(item.name, default)
    if value is MISSING:
        return "(required)"
    return f"(default: {' '.join(map(str, value)) if isinstance(value, list | tuple) else value})"


def _without_empty_tables(table: Mapping[str, Any]) -> Table:
    kept = {key: _without_empty_tables(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value != {}}


def _unboxed(text: str, kind: type) -> str:
    """Returns the error message without the box that tyro draws around it."""
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines() if not line.startswith("│ ──")]
    words = (line for line in lines[1:] if any(char.isalnum() for char in line))
    message = " ".join(line for line in words if not line.startswith("For full helptext"))
    message = message.partition(" Argument helptext:")[0]
    return message.removeprefix("Error parsing ").removeprefix(f"{kind.__name__}: ")
