"""Facts for a model card: licence, training and corpora, from the files of checkpoint, base model and rows."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, hf_hub_download
from huggingface_hub.constants import REPOCARD_NAME

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Provenance
from longmlm.artifacts.rows import RowsManifest
from longmlm.artifacts.run import CheckpointState
from longmlm.errors import ArtifactError, ReleaseError

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
    """How a checkpoint was trained, as far as known: its settings by name, seconds, and the base model's accuracy."""

    settings: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    base_cut: float | None = None


def licence_of(identifier: str | None, provenance: Provenance) -> Licence:
    """Returns the licence of that identifier, else that in the base model's card; raises ReleaseError without one."""
    if identifier is not None:
        return Licence(identifier)
    name, revision = (provenance.source.name, provenance.source.revision) if provenance.source else (None, None)
    data: dict[str, Any] = {}  # whatever authors write into their cards
    with suppress(Exception):  # a card that is missing or malformed names no licence, for whatever reason
        local = Path(str(name)) / REPOCARD_NAME
        path = (
            local if local.is_file() or not revision else hf_hub_download(str(name), REPOCARD_NAME, revision=revision)
        )
        data = ModelCard.load(path).data.to_dict()
    if not isinstance(data.get("license"), str):
        reason = f"that of the base model {name} is not known" if name else "there is no base model to take it from"
        raise ReleaseError(f'the licence is missing, and {reason}: set card.license, such as license = "apache-2.0"')
    return Licence(data["license"], data.get("license_name"), data.get("license_link"), is_of_base=True)


def training_of(checkpoint: Path) -> Training:
    """Returns how a run's checkpoint was trained; empty for any other folder."""
    try:
        saved = artifact.read(CheckpointState, checkpoint / CheckpointState.FILE)
    except (ArtifactError, OSError):
        return Training()
    settings = dict(_flat({**asdict(saved.recipe), "held_out": None}))
    precision = saved.precision
    with suppress(ArtifactError, OSError):
        trained = artifact.read(Provenance, checkpoint / Provenance.FILE).trained
        precision = precision or (trained.precision if trained else None)
    if precision and settings["precision"] == "auto":
        settings["precision"] = f"{PRECISIONS.get(precision, precision)} (auto)"
    return Training(settings, saved.state.training_seconds, saved.state.base_cut)


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
    return [f"{line} (licence not stated)" for line in lines]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, str(value)
