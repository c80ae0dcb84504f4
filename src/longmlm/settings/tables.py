"""Settings as nested tables, as read from TOML files and not yet validated; and their defaults."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field
from functools import reduce
from itertools import starmap
from pathlib import Path
from typing import Any

Table = dict[str, Any]
Unused = tuple[tuple[str, ...], str]  # dotted names of settings without effect, and the reason
# Keys of a field's metadata, for its JSON Schema: the field holds overlays on a class of settings; it holds a list of
# values for each setting of a class; longmlm fills it in, so files do not have it; only the defaults of these settings
# of its class are accepted here.
OVERLAY_OF, VALUES_OF, FILLED_IN = "overlay of", "values of", "filled in"
OPTION_ONLY = "more_steps"  # refused in files, which would add steps each time they are read
HOME_OF_PATH = re.compile(r"^(folder:)?~(?=/)")
HOME_OF_WORD = re.compile(r"(?<!\S)()~(?=/)")


def with_home(value: Any, key: str = "") -> Any:
    """Returns a value with the home folder in place of ~ in ~/PATH and folder:~/PATH, and in the words of `launch`."""
    match value:
        case str():
            pattern = HOME_OF_WORD if key == "launch" else HOME_OF_PATH
            return pattern.sub(lambda match: (match[1] or "") + str(Path.home()), value)
        case dict():
            return {name: with_home(item, name) for name, item in value.items()}
        case list() | tuple():
            return [with_home(item, key) for item in value]
        case _:
            return value


def merged(below: Any, above: Any) -> Any:
    """Returns `above`, or, for two tables, `below` with the keys of `above` merged into it.

    A table with numbers as keys, such as {"0": {...}}, is merged into the array items with these indices.
    """
    if not isinstance(above, Mapping):
        return above
    if isinstance(below, list):
        if not _is_numbered(above):
            return above
        below = {str(index): item for index, item in enumerate(below)}
    below = below if isinstance(below, Mapping) else {}
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def with_arrays(value: Any) -> Any:
    """Returns a value with arrays in place of tables with numbers as keys."""
    if isinstance(value, list):
        return [with_arrays(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    items = {key: with_arrays(item) for key, item in value.items()}
    return [items[key] for key in sorted(items, key=int)] if _is_numbered(items) else items


def _is_numbered(table: Mapping[str, Any]) -> bool:
    return bool(table) and all(key.isdigit() for key in table)


def without_empty_tables(table: Mapping[str, Any]) -> Table:
    """Returns the table without the tables in it that set nothing."""
    kept = {key: without_empty_tables(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value != {}}


def table_at(table: Mapping[str, Any], *path: str) -> Table:
    """Returns the table at a path; an empty one if there is none."""
    for key in path:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return dict(table)


def table_of(name: str, value: object) -> Table:
    """Returns the table in which a dotted name has this value."""
    key, _, rest = name.partition(".")
    return {key: table_of(rest, value) if rest else value}


def nested(named: Mapping[str, object]) -> Table:
    """Returns the tables in which dotted names have these values."""
    return reduce(merged, starmap(table_of, named.items()), {})


def without(table: Table, name: str) -> Table:
    """Returns the table without the setting with this dotted name."""
    key, _, rest = name.partition(".")
    inner = table.get(key)
    if rest and isinstance(inner, dict):
        return {**table, key: without(inner, rest)}
    return {other: value for other, value in table.items() if other != key or rest}


def default_of(item: Field) -> Any:
    """Returns the default of a setting; MISSING if it is required."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the dotted name and the value of every setting; in the tables of a tuple, with their index."""
    for key, value in table.items():
        is_tables = isinstance(value, tuple) and any(isinstance(item, Mapping) for item in value)
        inner = {str(index): item for index, item in enumerate(value)} if is_tables else value
        if isinstance(inner, Mapping):
            yield from leaves(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, value
