"""Artifacts: the typed, versioned files that stages write and other stages read; one adapter reads and writes them all.

Every artifact is a frozen dataclass. On disk it is a JSON object that begins with its `format`, the longmlm version
that wrote it and, if known, the commit:

    {"format": 1, "longmlm": "0.1.0", "commit": "b38c5a7...", "step": 500, ...}

A file of an older format is converted by the class's `upgrade` when it is loaded, or refused in one line; a file of a
newer format is always refused.
"""

import functools
import json
import subprocess
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from longmlm.errors import ArtifactError
from longmlm.folders import write_json

ROOT = Path(__file__).parents[3]


@functools.cache
def version() -> str:
    """Returns the version of the installed longmlm."""
    try:
        return metadata.version("longmlm")
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def commit() -> str | None:
    """Returns the commit of the checkout that this code runs from; None for an installed package."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What every artifact begins with. A subclass sets the default of `format` and, if it is a file, `FILE`."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    FILE: ClassVar[str] = ""

    format: int = 1
    longmlm: str = field(default_factory=version)
    commit: str | None = field(default_factory=commit)

    @classmethod
    def upgrade(cls, content: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - for subclasses
        """Returns the content of an older format as today's; raises ArtifactError, with the remedy, if it cannot."""
        raise ArtifactError("it was written by an earlier version of longmlm: make it again")


Kind = TypeVar("Kind", bound=Artifact)


def dump(artifact: Artifact) -> dict[str, Any]:
    """Returns the artifact as a JSON object."""
    return _adapter(type(artifact)).dump_python(artifact, mode="json")


def load(kind: type[Kind], text: str | bytes, name: str) -> Kind:
    """Returns the artifact in a JSON text, upgraded if it is of an older format.

    `name` says in the error what was read. Raises ArtifactError for anything else than an artifact of this kind.
    """
    import pydantic

    try:
        content = json.loads(text, parse_constant=lambda _: None)  # NaN: early versions wrote it for None
    except ValueError as error:
        raise ArtifactError(f"{name} is damaged: it is no JSON") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{name} is damaged: it holds no JSON object")
    try:
        return _adapter(kind).validate_json(json.dumps(upgraded(kind, content)), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ArtifactError(f"{name} is damaged: {where or 'its content'}: {problem['msg']}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{name} cannot be used: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArtifactError(f"{name} is damaged: it is of no format that longmlm writes") from error


def read(kind: type[Kind], path: Path) -> Kind:
    """Returns the artifact in a file; raises ArtifactError when it is absent, damaged or of another format."""
    try:
        return load(kind, path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} does not exist") from error


def write(path: Path, artifact: Artifact) -> None:
    """Writes the artifact, stamped anew, so that a reader sees the old file or the new one, never a part of it."""
    write_json(path, dump(replace(artifact, longmlm=version(), commit=commit())))


def upgraded(kind: type[Kind], content: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of an artifact in the current format; raises ArtifactError for that of a newer one."""
    current, found = kind.__dataclass_fields__["format"].default, content.get("format", 0)
    if type(found) is not int or found > current:
        raise ArtifactError(f"its format is {found!r}, this longmlm reads up to {current}: install a newer longmlm")
    if found == current:
        return content
    stamp = {"format": current, "longmlm": str(content.get("longmlm", "unknown")), "commit": content.get("commit")}
    return {**kind.upgrade(content), **stamp}


@functools.cache
def _adapter(kind: type[Artifact]) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)
