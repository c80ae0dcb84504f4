"""Command-line options, generated from the dataclasses of settings."""

import ast
import contextlib
import difflib
import inspect
import io
import itertools
import re
import textwrap
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from longmlm.errors import ConfigError
from longmlm.settings.publishing import redacted_settings
from longmlm.settings.tables import Table, default_of, without_empty_tables

TYRO_ERROR = 2  # exit code of tyro for arguments that cannot be used
OWN_NAME = "NAME"  # stands for a name of the user's in a dotted name
WORDS = {int: "a whole number", float: "a number", str: "a text"}
TYPING: Any = typing  # types made at run time have no static form


def given_options(
    kind: type,
    shown: Mapping[str, Any],
    in_pipeline: Mapping[str, Any],
    arguments: Sequence[str],
    usage: str,
    pipeline: tuple[type, Mapping[str, Any], Collection[str]] | None = None,
) -> Table:
    """Returns only the settings that the options set, as a TOML table.

    --help shows `shown` as the defaults, and the values of `in_pipeline` that differ. `pipeline` has the kind of a
    pipeline, the values of its file and the keys that are no options here; its other keys are, unless the kind has one
    of that name. Raises ConfigError with the name of the option.
    """
    if not arguments:
        return {}
    import tyro

    errors, options = io.StringIO(), _options(kind, shown, in_pipeline)
    if pipeline:
        around, values, unused = pipeline
        base = {key: item for key, item in _options(around, values, {}).__annotations__.items() if key not in unused}
        options = _typed_dict(kind.__name__, {**base, **options.__annotations__}, kind.__doc__)
    try:
        with contextlib.redirect_stderr(errors):
            given = tyro.cli(options, args=arguments, prog=usage, description=inspect.getdoc(kind))
    except SystemExit as stop:
        if stop.code != TYRO_ERROR:
            raise
        message = _unboxed(errors.getvalue(), kind).rstrip(".")
        raise ConfigError(_explained(message, dict(_names(options)), arguments)) from None
    return without_empty_tables(given)


def sections(item: Field) -> Iterator[type]:
    """Yields the dataclass of a setting that is a section, or an array of sections; nothing for other settings."""
    types: tuple[Any, ...] = (item.type, *get_args(item.type))
    yield from (part for part in types if isinstance(part, type) and is_dataclass(part))


def named_fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yields every setting and section with its dotted name; those of several tables once, as recipe.sources.files."""
    for item in fields(kind):
        yield f"{prefix}{item.name}", item
        for part in sections(item):
            own_name = f"{OWN_NAME}." if get_origin(item.type) is dict else ""
            yield from named_fields(part, f"{prefix}{item.name}.{own_name}")


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


def _options(kind: type, shown: Mapping[str, Any], in_pipeline: Mapping[str, Any]) -> Any:
    """Returns a TypedDict of optional keys, so that tyro returns only the options that were given."""
    import tyro

    texts, options = explanations(kind), {}
    for item in fields(kind):
        section, value, derived = next(sections(item), None), shown.get(item.name), in_pipeline.get(item.name)
        if get_origin(item.type) is dict:  # tables with names of the user's: only files have them
            continue
        if section is None:
            hint = _hint(item, shown, derived)
            described: Any = tyro.conf.arg(help=texts.get(item.name, ""), help_behavior_hint=hint)
            options[item.name] = TYPING.Annotated[item.type, described]
        elif get_origin(item.type) is tuple:
            tables = value if isinstance(value, list) and value else [{}]
            by_index = {str(index): _options(section, table, {}) for index, table in enumerate(tables)}
            options[item.name] = _typed_dict(item.name, by_index)
        else:
            inner = (table if isinstance(table, Mapping) else {} for table in (value, derived))
            options[item.name] = _options(section, *inner)
    return _typed_dict(kind.__name__, options, kind.__doc__)


def _typed_dict(name: str, keys: Table, doc: str | None = None) -> Any:
    kind = TYPING.TypedDict(name, keys, total=False)
    kind.__doc__ = doc
    return kind


def _hint(item: Field, shown: Mapping[str, Any], derived: Any) -> str:
    value = redacted_settings({item.name: shown.get(item.name, default_of(item))})[item.name]
    if value is MISSING:
        return "(required)"
    pipeline = f"in a pipeline file: {_words(derived)}" if derived not in (None, value) else ""
    parts = ["optional" if value in (None, "", (), []) else f"default: {_words(value)}", pipeline]
    return f"({'; '.join(filter(None, parts))})"


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _names(options: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yields the name of every option with its type."""
    for key, item in options.__annotations__.items():
        if typing.is_typeddict(item):
            yield from _names(item, f"{prefix}{key}.")
            continue
        kind = get_args(item)[0]
        yield f"{prefix}{key}".replace("_", "-"), kind
        if kind is bool:
            yield f"{prefix}no-{key}".replace("_", "-"), kind


def _explained(message: str, types: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """Returns a line about the wrong options in place of tyro's message, or that message for another error."""
    words = [word for argument in arguments for word in argument.split("=", 1 if argument.startswith("--") else 0)]
    given = {at: word.replace("_", "-") for at, word in enumerate(words) if word.startswith("--")}
    if unknown := [name for name in given.values() if name not in types]:
        return "; ".join(f"unknown option {name}{_nearest(name, types)}" for name in unknown)
    for at, name in given.items():
        end = next((later for later in given if later > at), len(words))
        values = " ".join(words[at + 1 : end])
        if values and types[name] is bool:
            return f"{name} takes no value: remove {values}"
        if re.search(rf"{re.escape(name)}(?![\w.-])", message):
            return f"{name} expects {_expected(types[name])}, not {values or 'nothing'}"
    return message


def _nearest(name: str, types: Mapping[str, Any]) -> str:
    moved = [known for known in types if known.rpartition(".")[2].strip("-") == name.rpartition(".")[2].strip("-")]
    nearest = [*moved, *difflib.get_close_matches(name, types, n=1, cutoff=0.8)]
    return f", did you mean {nearest[0]}?" if nearest else ""


def _expected(kind: Any) -> str:
    """Returns in words which values an option of this type takes."""
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if get_origin(kind) is tuple:
        return f"one or more values, each {_expected(parts[0])}"
    return " or ".join(map(_expected, parts)) or WORDS.get(kind, str(kind))


def _unboxed(text: str, kind: type) -> str:
    """Returns the error message without the box that tyro draws around it."""
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines() if not line.startswith("│ ──")]
    words = (line for line in lines[1:] if any(char.isalnum() for char in line))
    message = " ".join(line for line in words if not line.startswith("For full helptext"))
    message = message.partition(" Argument helptext:")[0]
    return message.removeprefix("Error parsing ").removeprefix(f"{kind.__name__}: ")
