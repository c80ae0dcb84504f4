"""A model's folder to its files: each is found whole, and where it should be, before a library reads it."""

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
    """Raises ModelError, which names the file, when one that is to be read is torn, altered, absent or elsewhere."""
    check_shard_index(folder)
    for path in (folder / name for name in JSON):
        if path.is_file():
            _json(path)
    for name in weight_files([path.name for path in folder.glob("*.safetensors")]):
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except SafetensorError as error:
            raise ModelError(
                f"{folder / name} is damaged ({error}): it was cut short, or is the pointer that git-lfs leaves; fetch "
                "it again"
            ) from error
    _refuse_altered(folder)


def check_shard_index(folder: Path) -> None:
    """Raises ModelError when an index in the folder names a file outside it, or one that is to be read and absent."""
    used = weight_files([path.name for path in folder.iterdir()])
    for index in folder.glob("*.index.json"):
        try:
            shards = list(_json(index)["weight_map"].values())
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is damaged: it maps no weights to files") from error
        if strange := [shard for shard in shards if Path(str(shard)).name != shard]:
            raise ModelError(f"{index} names a file outside its folder, {strange[0]}: do not use this checkpoint")
        missing = sorted({shard for shard in shards if not (folder / shard).is_file()})
        is_used = index.name.removesuffix(".index.json") not in used and any(shard in used for shard in shards)
        if missing and is_used:
            raise ModelError(f"{folder / missing[0]} is missing, and {index.name} names it: fetch it again")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is damaged: it is no JSON") from error


def _refuse_altered(folder: Path) -> None:
    """Raises ModelError for a file that is not what the folder's manifest says; a manifest of others says nothing."""
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
                f"{path} is damaged: its content is not what {MANIFEST} says; fetch it again, or, where the change was "
                f"meant, remove {MANIFEST}"
            )
