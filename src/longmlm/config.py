"""Settings of a stage: read from TOML files and the command line, and written back as TOML."""

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
    """Prints one line to standard error, on local rank 0 only, and exits with code 2."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def parse(kind: type[Config], arguments: Sequence[str], program: str = "longmlm") -> Config:
    """Returns the settings from TOML files, merged in order, and from the `--section.field value` options after them.

    Raises ConfigError with the file or option, the key, and the nearest known name.
    """
    import tyro

    split_at = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    paths, overrides = [Path(name) for name in arguments[:split_at]], arguments[split_at:]
    default = read(kind, paths) if paths else None
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind, args=overrides, default=default, prog=f"{program} [FILE.toml ...]", description=kind.__doc__
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        hint = "" if paths else "; name a TOML file first"
        raise ConfigError(_unboxed(errors.getvalue(), kind) + hint) from None


def read(kind: type[Config], paths: Sequence[Path]) -> Config:
    """Returns the settings from TOML files, merged in order: later files win, arrays are replaced as a whole."""
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
    """Returns the settings as TOML that `read` reads back; None is left out."""
    return tomli_w.dumps(_present(asdict(config)))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: no such TOML file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


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
    """Returns all problems in one line, unknown keys first: one may be a misspelling of a missing key."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument"):
        *parents, key = problem["loc"] or ("",)
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "unexpected_keyword_argument":
            near = _nearest(str(key), _section(kind, parents), kind)
            lines.append(f"unknown key {name}" + (f", did you mean {near}?" if near else ""))
        elif problem["type"] == "missing":
            lines.append(f"{name} is missing")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{name}: {message}" if name else message)
    return "; ".join(lines)


def _nearest(key: str, section: Any, kind: type) -> str | None:
    """Returns the key probably meant by an unknown one: the same in another section, or one like it in its own."""
    moved = (name for name in _names(kind) if name.rpartition(".")[2] == key)
    names = [item.name for item in fields(section)] if section else []
    return next(moved, None) or next(iter(difflib.get_close_matches(key, names, n=1, cutoff=0.5)), None)


def _names(kind: type, prefix: str = "") -> Iterator[str]:
    for item in fields(kind):
        yield f"{prefix}{item.name}"
        if subsection := _dataclass_in(item.type):
            yield from _names(subsection, f"{prefix}{item.name}.")


def _section(kind: Any, parents: Sequence[str | int]) -> Any:
    for parent in parents:
        if isinstance(parent, str) and is_dataclass(kind):
            kind = next((item.type for item in fields(kind) if item.name == parent), None)
        kind = _dataclass_in(kind)
    return kind


def _dataclass_in(kind: Any) -> Any:
    """Returns the dataclass that a field's type is or contains, as in tuple[Source, ...]; None without one."""
    return next((part for part in (kind, *getattr(kind, "__args__", ())) if is_dataclass(part)), None)


def _unboxed(text: str, kind: type) -> str:
    """Returns the message in a box that tyro draws, from what is wrong on."""
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines() if not line.startswith("│ ──")]
    words = (line for line in lines[1:] if any(char.isalnum() for char in line))
    message = " ".join(line for line in words if not line.startswith("For full helptext"))
    return message.removeprefix("Error parsing ").removeprefix(f"{kind.__name__}: ")
