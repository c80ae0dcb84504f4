"""Names of the weights in a model's files, read without the weights and without torch."""

import pickletools
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from longmlm.hubs.model_files import CONFIG, weight_paths
from longmlm.hubs.models import cached_file, commit_of, hub_weight_names, is_folder

MAX_PICKLE_BYTES = 50_000_000  # the names of a .bin file take thousands


def weight_names(name: str, revision: str | None = None) -> frozenset[str] | None:
    """Returns the names of a model's weights; None if they are not known before the files are loaded or downloaded.

    If the weights of a repository are not in the cache, the headers of its safetensors files are read. The result for a
    .bin file may also hold other texts.
    """
    found: set[str] = set()
    paths = weights_here(name, revision)
    if not paths and not is_folder(name):
        found |= hub_weight_names(name, commit_of(name, revision))
    for path in paths:
        if (names := _names_in(path)) is None:
            return None
        found |= names
    return frozenset(found) or None


def weights_here(name: str, revision: str | None = None) -> list[Path]:
    """Returns the files of a model's weights; none if they are not on this machine or not complete."""
    return weight_paths(Path(name)) if is_folder(name) else _cached_weights(name, revision)


def _cached_weights(name: str, revision: str | None) -> list[Path]:
    config = cached_file(name, commit_of(name, revision), CONFIG)
    paths = weight_paths(config.parent) if config else []
    return paths if paths and _has_all_shards(paths) else []


def _has_all_shards(paths: list[Path]) -> bool:
    """Returns whether the folder holds every file of a model that is stored in several, such as NAME-00001-of-00002."""
    last = paths[0].stem.rpartition("-of-")[2]
    return len(paths) == (int(last) if last.isdigit() and "-of-" in paths[0].stem else 1)


def _names_in(path: Path) -> set[str] | None:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy") as file:
                return set(file.keys())
        with zipfile.ZipFile(path) as archive:
            entry = next((item for item in archive.infolist() if item.filename.endswith("/data.pkl")), None)
            if entry is None or entry.file_size > MAX_PICKLE_BYTES:
                return None
            texts = (argument for _, argument, _ in pickletools.genops(archive.read(entry)))
            return {text for text in texts if isinstance(text, str)}
    except (SafetensorError, OSError, ValueError, zipfile.BadZipFile):  # loading reports it
        return None
