"""Artifacts: the typed, versioned JSON files that one stage writes and another reads.

Every artifact is a frozen dataclass. Its JSON object begins with the format, and the longmlm version and commit that
wrote it:

    {"format": 1, "longmlm": "0.1.0", "commit": "b38c5a7...", "step": 500, ...}

A file of another format, earlier or later, is refused in one line.

A MadeFrom records what a result was made from: its settings, and its inputs by content. Renaming an input does not
change it. If its content cannot be read now, names are compared instead.
"""

import functools
import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import tomli_w

from longmlm.errors import ArtifactError
from longmlm.folders import parse_json, write_json
from longmlm.settings.publishing import redacted_settings
from longmlm.settings.shipped import is_same_path
from longmlm.settings.tables import leaves

ROOT = Path(__file__).parents[3]
SIGNED = {"mtime_ns"}  # a time may be before 1970
LENGTHS = {"row_length", "base_positions", "num_positions", "num_processes", "num_rows"}
MAX_INTEGER = 2**63 - 1  # of numpy, torch and Arrow
PAGE_FILE = "index.html"
Json = dict[str, Any]  # a JSON object that was not validated yet, or is about to be written
RELEASED_FROM = "released_from"  # in the manifest of a release
OTHER = {  # the settings that name an input, and what is said of one whose content has changed
    **dict.fromkeys(("base", "checkpoint", "model", "long_before", "long_after"), "other weights"),
    **dict.fromkeys(("sources", "add_tokens"), "other text"),
    "rows": "other rows",
    "tokenizer": "another tokenizer",
    "terms": "other terms",
    "architecture": "another architecture",
    "run": "another curve",
    "evaluation": "another evaluation",
    "trial": "another trial",
}
LOCATIONS = (*OTHER, "output", "files", "dev_files", "test_files")  # a result depends on what lies there


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
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What every artifact begins with. A subclass that is a file of its own sets `FILE`.

    A subclass whose fields have changed sets `format` one higher, and what to do about another one in `REMEDY`.

    Unknown keys are refused, also in nested dataclasses: pydantic applies the configuration to all of them.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    FILE: ClassVar[str] = ""
    REMEDY: ClassVar[str] = "make it again"

    format: int = 1
    longmlm: str = field(default_factory=version)
    commit: str | None = field(default_factory=commit)


Kind = TypeVar("Kind", bound=Artifact)


def dump(artifact: Artifact) -> Json:
    """Returns the artifact as a JSON object; JSON has no NaN and no infinity, which become null."""
    return parse_json(_adapter(type(artifact)).dump_json(artifact))


def load(kind: type[Kind], text: str | bytes, name: str) -> Kind:
    """Returns the artifact in a JSON text.

    Raises ArtifactError, which calls the text `name`, unless it holds an artifact of this kind and format.
    """
    import pydantic

    try:
        content = parse_json(text)
        if not isinstance(content, dict):
            raise ArtifactError("it is damaged: it is not a JSON object")
        current, found = kind.__dataclass_fields__["format"].default, content.get("format")
        if type(found) is not int or found != current:
            raise ArtifactError(
                f"its format is {found!r}, this longmlm reads {current}: {kind.REMEDY}, or use the longmlm that wrote "
                f"it, {content.get('longmlm', 'of an unknown version')}"
            )
        artifact = _adapter(kind).validate_json(json.dumps(content, allow_nan=False), strict=True)
        _check_integers(artifact, "")
        return artifact
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise ArtifactError(f"{name} is damaged: {key or 'its content'}: {problem['msg']}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{name} cannot be used: {error}") from error
    except ValueError as error:
        raise ArtifactError(f"{name} is damaged: it is not JSON") from error


def _check_integers(value: object, name: str) -> None:
    """Raises ArtifactError for a count or position below 0, a length below 1, and an integer of more than 64 bits."""
    if is_dataclass(value):
        for item in fields(value):
            _check_integers(getattr(value, item.name), f"{name}.{item.name}")
    elif isinstance(value, tuple):
        for one in value:
            _check_integers(one, name)
    elif isinstance(value, int):
        own = name.rpartition(".")[2]
        lowest = -MAX_INTEGER if own in SIGNED else int(own in LENGTHS)
        if not lowest <= value <= MAX_INTEGER:
            raise ArtifactError(f"it is damaged: {name[1:]} is {value}")


def read(kind: type[Kind], path: Path) -> Kind:
    """Returns the artifact in a file; raises ArtifactError if the file is missing, damaged or of another format."""
    try:
        return load(kind, path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise ArtifactError(f"{path} is a folder, not a file: remove it") from error


def write(path: Path, artifact: Artifact) -> None:
    """Writes the artifact with this version and commit; a reader sees the old file or the new one, never a part."""
    write_json(path, dump(replace(artifact, longmlm=version(), commit=commit())))


@functools.cache
def _adapter(kind: type[Artifact]) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)


def to_toml(config: Any) -> str:
    """Returns the settings as TOML that `config.read` accepts, without passwords and without those that are None."""
    from longmlm.settings.pipeline import written_settings  # few of those who read artifacts write settings

    return tomli_w.dumps(redacted_settings(present(written_settings(config))))


def present(value: Any) -> Any:
    """Returns settings without those that are None, which TOML does not have."""
    if isinstance(value, dict):
        return {key: present(item) for key, item in value.items() if item is not None}
    return [present(item) for item in value] if isinstance(value, list | tuple) else value


def sha256_of_json(content: object) -> str:
    """Returns the SHA-256 of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Input:
    """An input: its name, and the hash or commit of its content; each is empty if it is not recorded or not known."""

    name: str = ""
    content: str = ""

    def is_same(self, now: "Input") -> bool:
        """Returns whether a recorded input is the one that is there now."""
        if self.content and now.content:
            return self.content == now.content
        is_commit = bool(self.content) and now.name.endswith(f"@{self.content}")
        return not self.name or is_commit or is_same_path(self.name, now.name)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in words: "recipe.seed was 1, is 2"; of a changed input, "other text than the corpus holds now"."""

    text: str
    is_input: bool = False


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """The settings on which a result depends, by dotted name, and its inputs by the setting that names them."""

    settings: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, Input] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, object], inputs: Mapping[str, Input | None]) -> Self:
        """Returns a record of these settings, without those that only say where something is stored, and inputs."""
        settings = {name: value for name, value in leaves(tables) if not _is_location(name, value)}
        return cls(parse_json(json.dumps(settings)), {name: one for name, one in inputs.items() if one})

    @classmethod
    def read(cls, content: Any) -> Self:  # any JSON value
        """Returns what was written as JSON; nothing if that is missing or something else."""
        try:
            return cls({**content["settings"]}, {name: Input(**one) for name, one in content["inputs"].items()})
        except (TypeError, KeyError, AttributeError):
            return cls()

    def within(self, stage: str) -> Self:
        """Returns it as a part of what a later stage's result was made from."""
        settings = {f"{stage}.{name}": value for name, value in self.settings.items()}
        return type(self)(settings, {f"{stage}.{name}": one for name, one in self.inputs.items()})

    def without(self, *names: str) -> Self:
        """Returns it without the settings and inputs of these names."""
        settings = {name: value for name, value in self.settings.items() if name not in names}
        return type(self)(settings, {name: one for name, one in self.inputs.items() if name not in names})

    @property
    def key(self) -> dict[str, str]:
        """A hash of all settings, and the content of each input, or its name if that is not known."""
        contents = {name: one.content or one.name for name, one in self.inputs.items()}
        return {"settings": sha256_of_json(self.settings), **contents}


def _is_location(name: str, value: object) -> bool:
    if isinstance(value, float | int):  # such as the weight of a source that is called files
        return False
    key = name.rpartition(".")[2]
    return value is None or key in LOCATIONS or (key == "dataset" and Path(str(value)).is_dir())


def differences(recorded: MadeFrom, expected: MadeFrom) -> list[Difference]:
    """Returns the settings and inputs in which a result differs from what is expected now."""
    then, now = recorded.settings, expected.settings
    found = [
        Difference(f"{name} was {then.get(name)}, is {now.get(name)}")
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    for name in {**recorded.inputs, **expected.inputs}:
        before, after = recorded.inputs.get(name), expected.inputs.get(name)
        if before is None or after is None:
            was, now_is = (one and (one.name or "another one") for one in (before, after))
            found.append(Difference(f"{name} was {was}, is {now_is}"))
        elif not before.is_same(after):
            has_changed = not before.name or is_same_path(before.name, after.name)
            other = f"{OTHER[name.rpartition('.')[2]]} than {after.name} holds now"
            found.append(
                Difference(other if has_changed else f"{name} was {before.name}, is {after.name}", has_changed)
            )
    return found
