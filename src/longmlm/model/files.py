"""Checks the files of a model's folder before a library reads them: each is intact and inside the folder."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from longmlm.errors import ModelError
from longmlm.folders import MANIFEST, sha256_of
from longmlm.hubs.extra_files import MODULES, extra_files, files_below, module_folders
from longmlm.hubs.models import weight_files
from longmlm.system_errors import system_error

JSON_FILES = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")  # of the files that are read


def check_model_files(folder: Path) -> None:
    """Raises ModelError, with the file's name, if one that will be read is cut short, altered, missing or outside."""
    weights = weight_files([path.name for path in folder.iterdir()])
    for index in folder.glob("*.index.json"):
        _check_index(index, weights)
    extra = extra_files(files_below(folder), module_folders(folder))
    for path in (folder / name for name in {*JSON_FILES, *extra} - {MODULES} if name.endswith(".json")):
        if path.is_file() and not isinstance(_json(path), dict):
            raise ModelError(f"{path} is damaged: it is not a JSON object")
    for path in (folder / name for name in (*weights, *extra) if name.endswith(".safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            if found := system_error(error, path):
                raise found from error
            raise ModelError(
                f"{path} is damaged ({error}): it was cut short, or is a git-lfs pointer; fetch it again"
            ) from error
    _check_manifest(folder)


def _check_index(index: Path, weights: list[str]) -> None:
    """Raises ModelError if the index names a file outside its folder, or a missing file that would be read."""
    try:
        shards = list(_json(index)["weight_map"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is damaged: it maps no weights to files") from error
    if outside := [shard for shard in shards if Path(str(shard)).name != shard]:
        raise ModelError(f"{index} names a file outside its folder, {outside[0]}: do not use this checkpoint")
    missing = [shard for shard in sorted(set(shards)) if not (index.parent / shard).is_file()]
    is_used = index.name.removesuffix(".index.json") not in weights and not set(weights).isdisjoint(shards)
    if missing and is_used:
        raise ModelError(f"{index.parent / missing[0]} is missing, and {index.name} names it: fetch it again")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is damaged: it is not JSON") from error


def _check_manifest(folder: Path) -> None:
    """Raises ModelError for a file that differs from the folder's manifest; other tools' manifests are ignored."""
    manifest = _json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    files = files if isinstance(files, dict) else {}
    extra = extra_files(files, module_folders(folder))
    for name, entry in files.items():
        path = folder / name
        is_read = name in extra or ("/" not in name and name.endswith(SUFFIXES))
        if not is_read or not isinstance(entry, dict) or "sha256" not in entry:
            continue
        if not path.is_file():
            raise ModelError(f"{path} is missing, and {MANIFEST} names it: fetch it again")
        if sha256_of(path) != entry["sha256"]:
            raise ModelError(
                f"{path} is damaged: its content differs from {MANIFEST}; fetch it again, or remove {MANIFEST} if you "
                "changed the file on purpose"
            )
