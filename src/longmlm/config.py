"""TOML files and overrides to the settings of a stage."""

import contextlib
import difflib
import errno
import io
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from longmlm.errors import ConfigError, UserError

Config = TypeVar("Config")
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns an error that the user can fix into one line on standard error and exit code 2."""
    try:
        yield
    except UserError as error:
        fail(str(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fail(f"the disk is full ({error.filename or 'while writing'}): free some space and start again")
        if error.errno not in UNUSABLE or not error.filename:
            raise
        fail(f"{error.filename}: {error.strerror}: name another path, or fix its permissions")
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str) -> None:
    """Prints one line to standard error, from the first process of a machine only, and exits with code 2."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def parse(kind: type[Config], arguments: Sequence[str], program: str = "longmlm") -> Config:
    """Returns the settings from TOML files, merged in their order, and the `--section.field value` that follow.

    Raises ConfigError that names the file or option, the key, and the nearest right name.
    """
    import tyro

    split_at = next((place for place, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    paths, overrides = [Path(name) for name in arguments[:split_at]], arguments[split_at:]
    default = read(kind, paths) if paths else None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind, args=overrides, default=default, prog=f"{program} [FILE.toml ...]", description=kind.__doc__
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        hint = "" if paths else "; name a TOML file first"
        raise ConfigError(_unboxed(said.getvalue()) + hint) from None


def read(kind: type[Config], paths: Sequence[Path]) -> Config:
    """Returns the settings that the files, merged in order, give; later files win, arrays are replaced whole."""
    import pydantic

    merged: dict[str, Any] = {}
    for path in paths:
        merged = _merge(merged, _toml(path))
    names = " + ".join(str(path) for path in paths)
    try:
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(merged, default=str), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{names}: {_explained(kind, error.errors(include_url=False))}") from None


def to_toml(config: Any) -> str:
    """Returns the settings as TOML that `parse` reads back; an absent value is left out."""
    return tomli_w.dumps(_present(asdict(config)))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: no such TOML file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merge(below[key], above[key]) for key in below.keys() & above.keys() if _tables(below, above, key)}
    return {**below, **above, **both}


def _tables(below: Mapping[str, Any], above: Mapping[str, Any], key: str) -> bool:
    return isinstance(below[key], dict) and isinstance(above[key], dict)


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    return [_present(item) for item in value] if isinstance(value, list | tuple) else value


def _explained(kind: type, problems: Sequence[Any]) -> str:
    """Returns all problems in one line; an unknown key stands before the missing one that it was perhaps meant for."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument"):
        *parents, key = problem["loc"] or ("",)
        place = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "unexpected_keyword_argument":
            near = _nearest(str(key), _section(kind, parents))
            lines.append(f"unknown key {place}" + (f", did you mean {near}?" if near else ""))
        elif problem["type"] == "missing":
            lines.append(f"{place} is missing")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {message}" if place else message)
    return "; ".join(lines)


def _nearest(key: str, section: Any) -> str | None:
    """Returns what an unknown key was meant for: the same name in a subsection, or a similar one."""
    names = [item.name for item in fields(section)] if section else []
    for item in fields(section) if section else ():
        subsection = _dataclass_in(item.type)
        if subsection and key in (inner.name for inner in fields(subsection)):
            return f"{item.name}.{key}"
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=0.5)), None)


def _section(kind: Any, parents: Sequence[str | int]) -> Any:
    for parent in parents:
        if isinstance(parent, str) and is_dataclass(kind):
            kind = next((item.type for item in fields(kind) if item.name == parent), None)
        kind = _dataclass_in(kind)
    return kind


def _dataclass_in(kind: Any) -> Any:
    """Returns the dataclass that a field's type is or contains, as in tuple[Source, ...]; None without one."""
    return next((part for part in (kind, *getattr(kind, "__args__", ())) if is_dataclass(part)), None)


def _unboxed(text: str) -> str:
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines() if not line.startswith("│ ──")]
    said = (line for line in lines[1:] if any(char.isalnum() for char in line))
    return " ".join(line for line in said if not line.startswith("For full helptext"))
