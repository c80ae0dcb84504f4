"""Settings as tables, as they stand in a TOML file before they are validated."""

from collections.abc import Iterator, Mapping
from typing import Any

Table = dict[str, Any]


def merged(below: Any, above: Any) -> Any:
    """Returns `above`, or, for two tables, `below` with the keys of `above` merged into it.

    A table of numbers, such as {"0": {...}}, is merged into the items of an array.
    """
    if not isinstance(above, Mapping):
        return above
    if above and all(key.isdigit() for key in above):
        items = dict(enumerate(below)) if isinstance(below, list) else {}
        items |= {int(key): merged(items.get(int(key)), value) for key, value in above.items()}
        return [items[key] for key in sorted(items)]
    below = below if isinstance(below, Mapping) else {}
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def table_at(table: Mapping[str, Any], *path: str) -> Table:
    """Returns the table at a path; an empty one where there is none."""
    for key in path:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return dict(table)


def leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the dotted name and the value of every setting."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
