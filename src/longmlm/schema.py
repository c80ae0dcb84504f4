"""JSON Schemas of settings files, made from the classes of settings; editors use them to complete and check files."""

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, get_args, get_origin

from longmlm.options import explanations, sections
from longmlm.settings.masking import UNUSED
from longmlm.settings.pipeline import DERIVED, PLACEHOLDER, ResolvedPipeline, stage_tables
from longmlm.settings.tables import FILLED_IN, OPTION_ONLY, OVERLAY_OF, VALUES_OF, Table, default_of
from longmlm.validation import adapter_of

DRAFT = "http://json-schema.org/draft-07/schema#"  # the newest that TOML editors support
NOTE = "No key is required: several files are merged in order, and options of the command line come last."


def schema_text(kind: type, command: str) -> str:
    """Returns the JSON Schema of the files with the settings of a command."""
    head = {"$schema": DRAFT, "title": f"longmlm {command}"}
    text = f"{_paragraph(kind)} {NOTE}"
    return json.dumps({**head, **_table(kind, _derived(kind)), "description": text}, indent=1, ensure_ascii=False)


def _derived(kind: type) -> Table:
    """Returns the settings that a pipeline derives from its base keys, whose defaults in a stage do not apply."""
    return dict(stage_tables(PLACEHOLDER, {})) if issubclass(kind, ResolvedPipeline) else {}


def _table(kind: Any, derived: Mapping[str, Any], prefix: str = "", unused: Collection[str] = ()) -> Table:
    """Returns the schema of a table without `unused` settings; no defaults are given for the settings in `derived`."""
    texts, properties = explanations(kind), {}
    for item in (item for item in fields(kind) if f"{prefix}{item.name}" not in DERIVED):
        if item.metadata.get(FILLED_IN) or item.name in (OPTION_ONLY, *unused):
            continue
        inner = derived.get(item.name)
        schema = _of_field(item, inner if isinstance(inner, Mapping) else {}, f"{prefix}{item.name}.")
        text = {"description": texts[item.name]} if item.name in texts else {}
        default = {} if item.name in derived or any(sections(item)) else _default(item)
        properties[item.name] = {**schema, **text, **default}
    return {"description": _paragraph(kind), "type": "object", "properties": properties, "additionalProperties": False}


def _of_field(item: Field, derived: Mapping[str, Any], prefix: str) -> Table:
    if kind := item.metadata.get(OVERLAY_OF):
        return {"type": "object", "additionalProperties": _table(kind, _derived(kind))}
    if kind := item.metadata.get(VALUES_OF):
        return _lists_of(_table(kind, _derived(kind)))
    if (kind := next(sections(item), None)) is None:
        return adapter_of(_without_none(item.type)).json_schema()
    if get_origin(item.type) is dict:
        return {"type": "object", "additionalProperties": _table(kind, {})}
    schema = _table(kind, derived, prefix, item.metadata.get(UNUSED, ()))
    return _array(schema) if get_origin(item.type) is tuple else schema


def _without_none(annotation: Any) -> Any:
    """Returns a type without None, since TOML has no null."""
    parts = [part for part in get_args(annotation) if part is not NoneType]
    return parts[0] if NoneType in get_args(annotation) else annotation


def _array(items: Table) -> Table:
    """Returns the schema of an array of tables, which may also be a table whose keys are indices to change."""
    numbered = {"patternProperties": {"^[0-9]+$": items}, "additionalProperties": False}
    return {"type": ["array", "object"], "items": items, **numbered}


def _lists_of(schema: Table) -> Table:
    """Returns the schema of tables in which each setting has a list of values to try."""
    if "properties" not in schema:
        text = {"description": schema["description"]} if "description" in schema else {}
        return {**text, "type": "array", "items": schema, "minItems": 1}
    return {**schema, "properties": {name: _lists_of(inner) for name, inner in schema["properties"].items()}}


def _default(item: Field) -> Table:
    default = default_of(item)
    return {} if default is MISSING or default is None else {"default": default}


def _paragraph(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())
