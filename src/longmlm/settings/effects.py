"""Which settings have no effect beside the others: what a user sets is never ignored in silence, but refused.

A class of settings names its own in a method `without_effect`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any

from longmlm.settings.pipeline import Pipeline
from longmlm.settings.tables import default_of, table_at, with_arrays


def settings_without_effect(config: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted name of each setting that was changed and has no effect, with the reason and what to do.

    A value that equals the default is not changed: it may be written out.
    """
    for names, reason in config.without_effect() if hasattr(config, "without_effect") else ():
        yield from ((f"{path}{name}", f"it has no effect {reason}") for name in names if _is_changed(config, name))
    for item in fields(config):
        for key, section in _sections(getattr(config, item.name)):
            yield from settings_without_effect(section, f"{path}{item.name}.{key}")


def base_keys_without_effect(base: Pipeline, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each base key for the sources of a corpus that none of them has, with the reason and what to do."""
    sources = with_arrays(table_at(given, "prepare", "recipe").get("sources"))
    sources = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    text = {"text_field", "text_fields"}
    for name, own in (("language", {"language"}), *((name, text) for name in text)) if not base.corpus else ():
        values = (getattr(base, name), [*getattr(base, name)])  # an array is a list in TOML
        is_used = any(not own & source.keys() or source.get(name) in values for source in sources)
        if sources and _is_changed(base, name) and not is_used:
            yield name, f"it has no effect, since every source has a {name} of its own: remove it"


def _sections(value: Any) -> Iterator[tuple[str, Any]]:
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    yield from ((f"{name}.", section) for name, section in named if is_dataclass(section))
    if is_dataclass(value):
        yield "", value


def _is_changed(config: Any, name: str) -> bool:
    *path, key = name.split(".")
    section = reduce(getattr, path, config)
    item = next((item for item in fields(section) if item.name == key), None)
    return item is not None and getattr(section, key) != default_of(item)
