"""What a result was made from: settings, and inputs by content; and in what this differs from what is expected.

An input is the same under another name. One whose content is not known now, since it is not there, counts as unchanged.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from longmlm.folders import parse_json, sha256_of_json
from longmlm.settings.shipped import is_same_path
from longmlm.settings.tables import leaves

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
        """Returns what is made from these settings, but for those that say where something lies, and these inputs."""
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
