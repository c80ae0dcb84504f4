"""Read a stage's settings from TOML files and the command line; write them back as TOML."""

import contextlib
import difflib
import errno
import functools
import io
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w

from longmlm.errors import ConfigError, UserError

Config = TypeVar("Config")
RENAMED = {"rows_per_batch": "rows_per_evaluation_batch"}  # keys of earlier versions
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
        fail(f"{error.filename}: {error.strerror}: name a different path, or fix its permissions")
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str) -> None:
    """Prints one line to standard error, on local rank 0 only, and exits with code 2."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def parse(kind: type[Config], arguments: Sequence[str], program: str = "longmlm") -> Config:
    """Returns the settings from TOML files, merged in order, overridden by `--section.field value` options after them.

    Raises ConfigError with the file or option, the key, and the key that was probably meant.
    """
    import tyro

    split_at = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    paths, overrides = [Path(name) for name in arguments[:split_at]], arguments[split_at:]
    default = read(kind, paths) if paths else None
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            usage = f"{program} [FILE.toml ...]"
            return tyro.cli(kind, args=overrides, default=default, prog=usage, description=kind.__doc__)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        message = _unboxed(errors.getvalue(), kind)
        hint = "; a TOML file that sets them may come first" if "Missing from" in message and not paths else ""
        raise ConfigError(message.rstrip(".") + hint) from None


def read(kind: type[Config], paths: Sequence[Path]) -> Config:
    """Returns the settings from TOML files. Later files override earlier ones; arrays are replaced, not merged."""
    import pydantic

    content = json.dumps(functools.reduce(_merge, map(_toml, paths), {}), default=str)
    try:
        return pydantic.TypeAdapter(kind).validate_json(content, strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        names = " + ".join(str(path) for path in paths)
        raise ConfigError(f"{names}: {_explained(kind, error.errors(include_url=False))}") from None


def to_toml(config: Any) -> str:
    """Returns the settings as TOML that `read` accepts; settings that are None are left out."""
    return tomli_w.dumps(_present(asdict(config)))


def _toml(path: Path) -> dict[str, Any]:  # Any: it is validated later, with the other layers
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: no such TOML file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _merge(below: Any, above: Any) -> Any:
    """Returns `above`, or, for two tables, `below` with the keys of `above` merged into it."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merge(below.get(key), value) for key, value in above.items()}


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    return [_present(item) for item in value] if isinstance(value, list | tuple) else value


def _explained(kind: type, problems: Sequence[Any]) -> str:
    """Returns all problems in one line, unknown keys first: one may be a misspelling of a missing key."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument"):
        name = ".".join(str(part) for part in problem["loc"])
        match problem["type"]:
            case "unexpected_keyword_argument":
                nearest = _nearest([part for part in problem["loc"] if isinstance(part, str)], kind)
                lines.append(f"unknown key {name}" + (f", did you mean {nearest}?" if nearest else ""))
            case "missing":
                lines.append(f"{name} is missing")
            case _:
                message = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{name}: {message}" if name else message)
    return "; ".join(lines)


def _nearest(path: Sequence[str], kind: type) -> str | None:
    """Returns the key that was probably meant: the same key in a different section, or a similar one in its own."""
    *sections, key = path
    names = [name.rpartition(".") for name in _names(kind)]
    moved = [section + dot + last for section, dot, last in names if last in (key, RENAMED.get(key))]
    siblings = [last for section, _, last in names if section == ".".join(sections)]
    return next(iter(moved + difflib.get_close_matches(key, siblings, n=1, cutoff=0.5)), None)


def _names(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of every setting; those of an array of tables, such as recipe.sources.files, once."""
    for item in fields(kind):
        yield f"{prefix}{item.name}"
        for part in (item.type, *get_args(item.type)):
            if is_dataclass(part):
                yield from _names(part, f"{prefix}{item.name}.")


def _unboxed(text: str, kind: type) -> str:
    """Returns the error message without the box that tyro draws around it."""
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines() if not line.startswith("│ ──")]
    words = (line for line in lines[1:] if any(char.isalnum() for char in line))
    message = " ".join(line for line in words if not line.startswith("For full helptext"))
    return message.removeprefix("Error parsing ").removeprefix(f"{kind.__name__}: ")
