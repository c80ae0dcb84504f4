"""Checks the files of a model's folder before a library reads them: each is intact and inside the folder."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from longmlm.errors import ModelError
from longmlm.folders import MANIFEST, sha256_of
from longmlm.hubs.models import weight_files

SETTINGS = ("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
JSON = (*SETTINGS, "tokenizer.json", "tokenizer_config.json")
READ = (".json", ".txt", ".model", ".safetensors", ".bin")


def check_model_files(folder: Path) -> None:
    """Raises ModelError, with the file's name, if one that will be read is cut short, altered, missing or outside."""
    check_shard_index(folder)
    for path in (folder / name for name in JSON):
        if path.is_file():
            _object(path)
    for path in (folder / name for name in weight_files([path.name for path in folder.iterdir()])):
        if path.suffix != ".safetensors":
            continue
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise ModelError(
                f"{path} is damaged ({error}): it was cut short, or is a git-lfs pointer; fetch it again"
            ) from error
    _check_manifest(folder)


def check_shard_index(folder: Path) -> None:
    """Raises ModelError if an index in the folder names a file outside it, or a missing file that would be read."""
    used = weight_files([path.name for path in folder.iterdir()])
    for index in folder.glob("*.index.json"):
        try:
            shards = list(_object(index)["weight_map"].values())
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is damaged: it maps no weights to files") from error
        if strange := [shard for shard in shards if Path(str(shard)).name != shard]:
            raise ModelError(f"{index} names a file outside its folder, {strange[0]}: do not use this checkpoint")
        missing = sorted({shard for shard in shards if not (folder / shard).is_file()})
        is_used = index.name.removesuffix(".index.json") not in used and any(shard in used for shard in shards)
        if missing and is_used:
            raise ModelError(f"{folder / missing[0]} is missing, and {index.name} names it: fetch it again")


def _object(path: Path) -> dict[str, Any]:  # Any: whatever transformers and others put into their files
    if not isinstance(content := _json(path), dict):
        raise ModelError(f"{path} is damaged: it holds no JSON object")
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is damaged: it is no JSON") from error


def _check_manifest(folder: Path) -> None:
    """Raises ModelError for a file that differs from the folder's manifest; other tools' manifests are ignored."""
    manifest = _json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    for name, expected in files.items() if isinstance(files, dict) else ():
        path = folder / name
        if "/" in name or not name.endswith(READ) or not isinstance(expected, dict) or "sha256" not in expected:
            continue
        if not path.is_file():
            raise ModelError(f"{path} is missing, and {MANIFEST} names it: fetch it again")
        if sha256_of(path) != expected["sha256"]:
            raise ModelError(
                f"{path} is damaged: its content differs from {MANIFEST}; fetch it again, or remove {MANIFEST} if you "
                "changed the file on purpose"
            )
