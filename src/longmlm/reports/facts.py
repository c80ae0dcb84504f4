"""What a model was made of to what a card tells of it: licence, training, corpora."""

import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, hf_hub_download

from longmlm.artifacts.rows import RowsManifest
from longmlm.errors import ReleaseError
from longmlm.model.loading import PROVENANCE
from longmlm.training.tracking import SETTINGS

MOST_FILES = 3
PRECISIONS = {"no": "fp32"}


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence by its identifier; one that hubs call `other` has a name and a link; whether it is the base model's."""

    identifier: str
    name: str | None = None
    link: str | None = None
    is_of_base: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """How a checkpoint was trained, where that is known: its recipe, seconds, and what the base model tells."""

    recipe: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    base_cut: float | None = None


def licence_of(told: str | None, provenance: Mapping[str, Any]) -> Licence:
    """Returns the licence that was told, else that in the card of the base model; raises ReleaseError without one."""
    if told is not None:
        return Licence(told)
    key = "base" if "base" in provenance else "started_from"
    name, revision = provenance.get(key), provenance.get(f"{key}_revision")
    found: dict[str, Any] = {}
    with suppress(Exception):  # whatever is wrong with the base model's card, it does not tell a licence
        local = Path(str(name)) / "README.md"
        path = local if local.is_file() or not revision else hf_hub_download(str(name), "README.md", revision=revision)
        found = ModelCard.load(path).data.to_dict()
    if not isinstance(found.get("license"), str):
        of = f"that of the base model {name} is not known" if name else "there is no base model to take it from"
        raise ReleaseError(f'the licence is missing, and {of}: set license, such as license = "apache-2.0"')
    return Licence(found["license"], found.get("license_name"), found.get("license_link"), is_of_base=True)


def training_of(checkpoint: Path) -> Training:
    """Returns how a run's checkpoint was trained; empty for any other folder."""
    recipe: dict[str, Any] = {}
    precision: str | None = None
    state: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError):
        recipe = tomllib.loads((checkpoint / SETTINGS).read_text(encoding="utf-8"))["recipe"]
    with suppress(OSError, ValueError, KeyError):
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["state"]
    with suppress(OSError, ValueError, KeyError):
        precision = json.loads((checkpoint / PROVENANCE).read_text(encoding="utf-8"))["trained"]["precision"]
    if precision and recipe.get("precision") == "auto":
        recipe["precision"] = f"{PRECISIONS.get(precision, precision)} (auto)"
    return Training(_flat(recipe), state.get("training_seconds"), state.get("base_cut"))


def datasets(rows: RowsManifest) -> list[str]:
    """Returns the data sets on the hub of which the rows were made, each once."""
    named = (source.dataset for source in rows.plan.sources if source.dataset and source.commit)
    return list(dict.fromkeys(named))


def corpora(rows: RowsManifest) -> list[str]:
    """Returns a line for each source of the rows: a data set with its commit, or the names of files."""
    lines = []
    for source in rows.plan.without_paths().sources:
        if source.dataset:
            commit = f"commit {source.commit}" if source.commit else None
            parts = (source.dataset, source.subset, source.split, commit)
            lines.append(", ".join(part for part in parts if part))
        else:
            more = f" and {len(source.files) - MOST_FILES:,} more files" if len(source.files) > MOST_FILES else ""
            lines.append(", ".join(file.path for file in source.files[:MOST_FILES]) + more)
    return [f"{line} (licence not told)" for line in lines]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
