"""Checks the files of a model's folder before a library reads them: each is intact and inside the folder."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longmlm.errors import ModelError, system_error
from longmlm.folders import MANIFEST, parse_json, sha256_of
from longmlm.hubs.extra_files import MODULES, extra_files, files_below, module_folders
from longmlm.hubs.models import weight_files, weight_paths

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
WEIGHT_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # transformers takes the names for regular expressions
MAX_NAME_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """The type and shape of a weight in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


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


def stored_weights(folder: Path) -> dict[str, StoredWeight]:
    """Returns type and shape of each weight in a model's folder, by name, without reading the weights.

    Raises ModelError for a file that is damaged or holds anything else, and for a name that cannot be saved again.
    """
    stored = {}
    for path in weight_paths(folder):
        for key, tensor in _tensors_in(path):
            if not WEIGHT_NAME.fullmatch(key) or len(key) > MAX_NAME_CHARACTERS:
                raise ModelError(
                    f"{path} names a weight {ascii(key)[:60]}: names consist of letters, digits, _, - and dots; rename "
                    "it or remove it"
                )
            stored[key] = StoredWeight(tensor.dtype, tuple(tensor.shape))
    return stored


def _tensors_in(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields name and tensor of each weight in a file; the numbers of safetensors are read when they are used."""
    if path.suffix != ".safetensors":
        yield from load_tensors(path, "meta").items()
        return
    with safe_open(path, framework="pt") as file:
        yield from ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118 - it is not a dict


def load_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Returns the tensors in a file of torch.save; raises ModelError if it is damaged or holds anything else."""
    try:
        content: Any = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # from pickle, zipfile, torch: no two damages raise the same type
        raise ModelError(f"{path} is damaged or holds more than tensors: take one with safetensors") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, not tensors by name: save a state_dict()")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor) or value.layout is not torch.strided:
            kind = f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ModelError(
                f"{path} holds more than tensors, {ascii(key)[:60]} is {kind}: save a state_dict() of plain tensors"
            )
    return content


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
        return parse_json(path.read_text(encoding="utf-8"))
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
