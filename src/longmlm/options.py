"""Command-line options, generated from the dataclasses of settings."""

import argparse
import ast
import difflib
import inspect
import itertools
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from longmlm.errors import ConfigError
from longmlm.settings.masking import UNUSED
from longmlm.settings.pipeline import DERIVED, Pipeline, PipelineReader, ResolvedPipeline
from longmlm.settings.publishing import redacted_settings
from longmlm.settings.tables import Table, default_of, nested

OWN_NAME = "NAME"  # stands for a name that the user chooses in a dotted name
WORDS = {int: "an integer", float: "a number", str: "a string", bool: "no value"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option --section.setting: the dotted name of the setting, its type, and its help below that of its section.

    Its help is argparse.SUPPRESS if only the default is accepted.
    """

    setting: str
    kind: Any
    help: str
    section: tuple[str, str]  # its name, and what it is

    @property
    def name(self) -> str:
        """The option as --help shows it."""
        return f"--{self.setting}".replace("_", "-")


class Help(argparse.HelpFormatter):
    """Shows for each option its name and one value: argparse accepts any number of words, which are counted later."""

    def _format_args(self, action: argparse.Action, default_metavar: str | None) -> str:  # noqa: ARG002
        return str(action.metavar)


def given_options(listed: Sequence[Option], arguments: Sequence[str], usage: str, description: str) -> Table:
    """Returns only the settings that the arguments set, as a TOML table; if an option is repeated, the last one counts.

    Raises ConfigError with the name of the option.
    """
    options = {option.name: option for option in listed}
    negations = {negation(name): option for name, option in options.items() if option.kind is bool}
    parser = argparse.ArgumentParser(
        usage=f"{usage} [--section.field value ...]",
        description=description,
        formatter_class=Help,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    groups = {section: parser.add_argument_group(*section) for section in {item.section: None for item in listed}}
    for name, option in options.items():
        text = option.help.replace("%", "%%")
        metavar = f"/ {negation(name)}" if option.kind is bool else _metavar(option.kind)
        groups[option.section].add_argument(name, dest=name, nargs="*", metavar=metavar, help=text)
    for name in negations:
        parser.add_argument(name, dest=name, nargs="*", help=argparse.SUPPRESS)
    words = [_with_hyphens(argument) for argument in arguments]
    last = {word.partition("=")[0]: index for index, word in enumerate(words)}
    if last.keys() & {"-h", "--help"}:
        parser.print_help()
        sys.exit(0)
    given, rest = parser.parse_known_args(words)
    known = options | negations
    if unknown := [word.partition("=")[0] for word in rest if word.startswith("-")] or rest:
        raise ConfigError("; ".join(f"unknown option {name}{_nearest(name, known)}" for name in unknown))
    values: Table = {}
    for name, value in sorted(vars(given).items(), key=lambda item: last[item[0]]):
        parsed = _value(name, known[name].kind, value)
        values[known[name].setting] = parsed if name in options else False
    return nested(values)


def usage_of(names: Sequence[str]) -> str:
    """Returns how settings that stand among the files are shown in the usage of a command."""
    *lists, last = (name.upper() for name in names)
    return " ".join([*(f"[{name} ...]" for name in lists), f"[{last}]"])


def named_arguments(names: Sequence[str], words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns positional arguments as options: the last one with the last name, the others with the first name.

    Raises ConfigError for a setting that an option sets too.
    """
    *lists, name = names
    given = [*(words[-1:] if lists else words), *(word for word in options if word.partition("=")[0] == f"--{name}")]
    if words and len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are both {name}: name one")
    before = [f"--{lists[0]}", *words[:-1]] if lists and words[:-1] else []
    return [*before, *(f"--{name}={word}" for word in words[-1:])]


def sections(item: Field) -> Iterator[type]:
    """Yields the dataclass of a setting that is a section, or an array of sections; nothing for other settings."""
    types: tuple[Any, ...] = (item.type, *get_args(item.type))
    yield from (part for part in types if isinstance(part, type) and is_dataclass(part))


STAGES: dict[type, str] = {kind: item.name for item in fields(ResolvedPipeline) for kind in sections(item)}


def named_fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yields every setting and section with its dotted name; those of several tables once, as recipe.sources.files.

    Those that follow from the base keys of a pipeline are left out.
    """
    for item in (item for item in fields(kind) if f"{prefix}{item.name}" not in DERIVED):
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


def options_of(
    kind: type, shown: Mapping[str, Any], in_pipeline: Mapping[str, Any], prefix: str = ""
) -> Iterator[Option]:
    """Yields the options of a class of settings.

    --help shows `shown` as the defaults, and the values of `in_pipeline` that differ.
    """
    texts, types, section = explanations(kind), get_type_hints(kind), ("settings", "")
    if prefix:
        section = (f"[{prefix.rstrip('.')}]", inspect.getdoc(kind) or "")
    for item in fields(kind):
        part, value, derived = next(sections(item), None), shown.get(item.name), in_pipeline.get(item.name)
        name = f"{prefix}{item.name}"
        if name in DERIVED or get_origin(item.type) is dict:  # tables whose names the user chooses stand in files
            continue
        if part is None:
            text = f"{texts.get(item.name, '')} {_hint(item, shown, derived)}"
            yield Option(name, types[item.name], text, section)
        elif get_origin(item.type) is tuple:
            for index, table in enumerate(value if isinstance(value, list) and value else [{}]):
                yield from options_of(part, table, {}, f"{name}.{index}.")
        else:
            inner, elsewhere = (table if isinstance(table, Mapping) else {} for table in (value, derived))
            hidden = {f"{name}.{one}" for one in item.metadata.get(UNUSED, ())}
            for option in options_of(part, inner, elsewhere, f"{name}."):
                yield replace(option, help=argparse.SUPPRESS) if option.setting in hidden else option


def base_options(kind: Any, content: Table) -> list[Option]:
    """Returns the options for a pipeline's base keys, if the command takes pipeline files."""
    unused = {"until"} if STAGES.get(kind) == "pretrain" else {"until", "launch"}
    has_pipeline = kind in STAGES or issubclass(kind, PipelineReader)
    return [one for one in options_of(Pipeline, content, {}) if one.setting not in unused] if has_pipeline else []


def negation(name: str) -> str:
    """Returns the option that sets False: --runtime.no-setting."""
    section, dot, last = name.removeprefix("--").rpartition(".")
    return f"--{section}{dot}no-{last}"


def _with_hyphens(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def _value(name: str, kind: Any, words: Sequence[str]) -> Any:
    """Returns the value that the words after an option give; raises ConfigError if they are not of its type."""
    import pydantic

    if kind is bool:
        if words:
            raise ConfigError(f"{name} takes no value: remove {' '.join(words)}")
        return True
    if words == ["None"] and type(None) in get_args(kind):
        return None
    is_list = get_origin(kind) is tuple
    try:
        if words and (is_list or len(words) == 1):
            return pydantic.TypeAdapter(kind).validate_python(words if is_list else words[0])
    except pydantic.ValidationError:
        pass
    raise ConfigError(f"{name} expects {_expected(kind)}, not {' '.join(words) or 'nothing'}")


def _metavar(kind: Any) -> str:
    """Returns what --help shows as the value of an option of this type."""
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, parts))}}}"
    if get_origin(kind) is tuple:
        return f"{_metavar(parts[0])} ..."
    return "|".join(map(_metavar, parts)) or kind.__name__.upper()


def _hint(item: Field, shown: Mapping[str, Any], derived: Any) -> str:
    value = redacted_settings({item.name: shown.get(item.name, default_of(item))})[item.name]
    if value is MISSING:
        return "(required)"
    pipeline = f"in a pipeline file: {_words(derived)}" if derived not in (None, value) else ""
    parts = ["optional" if value in (None, "", (), []) else f"default: {_words(value)}", pipeline]
    return f"({'; '.join(filter(None, parts))})"


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _nearest(name: str, names: Collection[str]) -> str:
    moved = [known for known in names if known.rpartition(".")[2].strip("-") == name.rpartition(".")[2].strip("-")]
    if not name.startswith("--"):
        return " (write a value that begins with - as --name=VALUE)" if name.startswith("-") else ""
    nearest = [*moved, *difflib.get_close_matches(name, names, n=1, cutoff=0.8)]
    return f", did you mean {nearest[0]}?" if nearest else ""


def _expected(kind: Any) -> str:
    """Returns in words which values an option of this type takes."""
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if get_origin(kind) is tuple:
        return f"one or more values, each {_expected(parts[0])}"
    return " or ".join(map(_expected, parts)) or WORDS.get(kind, str(kind))
