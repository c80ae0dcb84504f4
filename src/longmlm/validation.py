"""Validates settings against their dataclass, and names every error in one line."""

import difflib
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from fnmatch import fnmatch
from typing import Any

from longmlm.errors import ConfigError
from longmlm.options import OWN_NAME, named_fields, sections
from longmlm.settings.effects import settings_without_effect
from longmlm.settings.publishing import redacted_address
from longmlm.settings.tables import Table

NEEDED = {  # by pydantic's type of error
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "string_type": "a string",
    "tuple_type": "a list",
}
BOUNDS = {  # by pydantic's type of error: the key of the bound, and what the value must be
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
UNION_TAG = re.compile(r"float|int|str|(dict|tuple)\[.*\]")  # names the tried type of a union behind the setting's name
CHECK = "value_error"  # pydantic's type of an error that a class of settings raises
MAX_SHOWN = 60  # characters of a wrong value


def validated(kind: Any, content: Table, problems: list[Any], allows_unused: bool = False) -> Any:
    """Returns the settings of this kind; raises ConfigError with `problems` and every error in the content.

    If `problems` has an error of a pipeline's base key, the content has a placeholder for that key. Contradictions with
    the placeholder are not the user's errors, so checks across settings are skipped.
    """
    import pydantic

    config, text = None, json.dumps(_with_sections(kind, content), default=str)
    has_stand_ins = any(one["type"] for one in problems)
    try:
        config = adapter_of(kind).validate_json(text, strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        problems = [*problems, *(one for one in found if not (has_stand_ins and one["type"] == CHECK))]
    if config is not None and not (allows_unused or has_stand_ins):
        problems = [*problems, *(problem(name, reason) for name, reason in settings_without_effect(config))]
    if problems:
        raise ConfigError(_explained(kind, problems)) from None
    return config


@functools.cache
def adapter_of(kind: Any) -> Any:
    """Returns what validates settings of this kind; it takes tens of milliseconds to make."""
    import pydantic

    return pydantic.TypeAdapter(kind)


def problem(name: str, message: str) -> dict[str, Any]:
    """Returns an error of the setting with this dotted name, in pydantic's form."""
    return {"type": "", "loc": (name,), "msg": message}


def _with_sections(kind: Any, content: Mapping[str, Any]) -> Table:
    """Returns the content with an empty table for each required section, so that errors name what that requires."""
    filled = dict(content)
    for item in fields(kind):
        if item.default is MISSING and item.default_factory is MISSING and any(sections(item)):
            table = filled.get(item.name, {})
            is_section = is_dataclass(item.type) and isinstance(table, Mapping)
            filled[item.name] = _with_sections(item.type, table) if is_section else table
    return filled


def _explained(kind: type, problems: Sequence[Any]) -> str:
    """Returns all problems in one line, unknown keys first: one may be a misspelling of a missing key."""
    lines: list[str] = []
    needed: dict[tuple[str, str], list[str]] = {}  # by name and what it was set to, more than one for a union of types
    for problem in sorted(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument"):
        name = ".".join(str(part) for part in problem["loc"])
        match problem["type"]:
            case "unexpected_keyword_argument" if name == "compare":
                lines.append("compare is only for longmlm compare: move this table to a separate file")
            case "unexpected_keyword_argument":
                nearest = _nearest([part for part in problem["loc"] if isinstance(part, str)], kind)
                lines.append(f"unknown key {name}" + (f", did you mean {nearest}?" if nearest else ""))
            case "missing":
                lines.append(f"{name} is missing")
            case "too_short":
                lines.append(f"{name} needs at least {problem['ctx']['min_length']} value")
            case wrong if wrong in BOUNDS:
                key, words = BOUNDS[wrong]
                limit = f"{words} {problem['ctx'][key]:,.15g}" if math.isfinite(problem["ctx"][key]) else "finite"
                lines.append(f"{name} must be {limit}, not {json.dumps(problem['input'])}")
            case wrong if wanted := NEEDED.get(wrong, problem.get("ctx", {}).get("expected")):
                *section, last = name.split(".")
                name = ".".join(section) if section and UNION_TAG.fullmatch(last) else name
                needed.setdefault((name, _shown(wanted, problem["input"])), []).append(wanted.replace("'", '"'))
            case _:
                message = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{name}: {message}" if name else message)
    lines += [f"{name}: {' or '.join(wanted)} is needed, {shown}" for (name, shown), wanted in needed.items()]
    return "; ".join(lines)


def _shown(wanted: str, value: object) -> str:
    """Returns what a setting was set to, without what may be secret or long; in place of a list, how to write one."""
    if isinstance(value, list | dict):
        return "not a list" if isinstance(value, list) else "not a table"
    text = json.dumps(redacted_address(value) if isinstance(value, str) else value, ensure_ascii=False)
    text = f"{text[:MAX_SHOWN]}…" if len(text) > MAX_SHOWN else text
    return f"as in [{text}]" if wanted == "a list" and value is not None else f"not {text}"


def _nearest(path: Sequence[str], kind: type) -> str | None:
    """Returns the key that was probably meant: the same key in a different section, or a similar one in its own."""
    *own, key = path
    names = [name.rpartition(".") for name, _ in named_fields(kind)]
    moved = [section + dot + last for section, dot, last in names if last == key]
    siblings = [last for section, _, last in names if fnmatch(".".join(own), section.replace(OWN_NAME, "*"))]
    return next(iter(moved + difflib.get_close_matches(key, siblings, n=1, cutoff=0.5)), None)
