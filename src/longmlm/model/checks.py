"""Checks a model's folder: its files are intact and inside it, and its weights are those that config.json describes."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.errors import ModelError, counted, system_error
from longmlm.folders import MANIFEST, parse_json, sha256_of
from longmlm.hubs.model_files import MODULES, extra_files, module_folders, weight_paths
from longmlm.hubs.models import HubSnapshot, check_has_config, check_has_weights

JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")  # of the files that are read
WEIGHT_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # transformers takes the names for regular expressions
MAX_NAME_CHARACTERS = 500
REBUILT_BUFFERS = ("position_ids", "token_type_ids")
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of LayerNorms in the first BERT models


def check_model_files(name: str, snapshot: HubSnapshot) -> None:
    """Raises ModelError, with the file's name, if one that will be read is cut short, altered, missing or outside."""
    folder, extra = snapshot.folder, snapshot.extra
    check_has_config(name, folder)
    weights = [path.name for path in weight_paths(folder)]
    for index in folder.glob("*.index.json"):
        _check_index(index, weights)
    for path in (folder / file for file in {*JSON_FILES, *extra} - {MODULES} if file.endswith(".json")):
        if path.is_file() and not isinstance(_json(path), dict):
            raise ModelError(f"{path} is damaged: it is not a JSON object")
    for path in (folder / file for file in (*weights, *extra) if file.endswith(".safetensors")):
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
    check_has_weights(name, folder)


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
    manifest_file = folder / MANIFEST
    manifest = _json(manifest_file) if manifest_file.is_file() else None
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


def stored_weights(folder: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Returns the weights in a model's folder by name; the numbers of safetensors are read when they are used.

    Weights of a pytorch_model.bin are put on `device`. Raises ModelError for one that holds anything else.
    """
    stored: dict[str, Tensor] = {}
    for path in weight_paths(folder):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                stored |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is not a dict
        else:
            stored |= load_tensors(path, device)
    return stored


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


def check_stored(name: str, stored: Mapping[str, Tensor], described: PreTrainedModel) -> None:
    """Raises ModelError for a stored weight that does not fit the model that config.json describes.

    It has another shape, holds no floating-point numbers, or has a name that cannot be saved again. `described` is that
    model, which needs no weights.
    """
    parameters = dict(described.named_parameters(remove_duplicate=False))
    prefix = f"{described.base_model_prefix}."
    for key, weight in stored.items():
        if not WEIGHT_NAME.fullmatch(key) or len(key) > MAX_NAME_CHARACTERS:
            raise ModelError(
                f"{name} names a weight {ascii(key)[:60]}: names consist of letters, digits, _, - and dots; rename it "
                "or remove it"
            )
        stem, dot, last = key.rpartition(".")
        key_now = stem + OLD_ENDINGS.get(dot + last, dot + last)
        parameter = parameters.get(key_now, parameters.get(prefix + key_now))
        if parameter is None:
            continue
        if not weight.dtype.is_floating_point:
            raise ModelError(
                f"{name}: {key} is of type {str(weight.dtype).removeprefix('torch.')}, and weights must be "
                "floating-point numbers: take a checkpoint that is not quantized"
            )
        check_shape(name, key, weight.shape, parameter.shape)


def check_shape(name: str, key: str, actual: Collection[int], expected: Collection[int]) -> None:
    """Raises ModelError if a weight does not have the shape that config.json specifies."""
    if tuple(actual) != tuple(expected):
        shapes = [" x ".join(map(str, sizes)) or "a single number" for sizes in (actual, expected)]
        raise ModelError(
            f"{name}: {key} does not have the shape that config.json specifies: it is {shapes[0]}, not {shapes[1]}; "
            "take the config.json of these weights, or an intact checkpoint"
        )


def check_tied(name: str, model: PreTrainedModel) -> None:
    """Raises ModelError if config.json ties two weights whose stored values differ: transformers 5 would keep both."""
    described = model.get_expanded_tied_weights_keys(all_submodels=True)
    for target in sorted(described.keys() - model.all_tied_weights_keys.keys()):
        raise ModelError(
            f"{name}: {target} differs from {described[target]}, and config.json says that they are one weight: set "
            f'"tie_word_embeddings": false in config.json if both are right, or remove {target} from the weights'
        )


def check_encoder(name: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Raises ModelError for a weight with a wrong shape, and for one of the encoder that is missing or not described.

    `info` is the loading info of transformers. A pooler may be missing or left over.
    """
    prefix = f"{model.base_model_prefix}."
    parts = {key.split(".")[0] for key in model.base_model.state_dict()}  # an encoder saved alone has no prefix

    def of_encoder(keys: Iterable[str]) -> Iterator[str]:
        for key in sorted(keys):
            part = key.removeprefix(prefix).split(".")[0]
            is_ignored = part == "pooler" or key.endswith(REBUILT_BUFFERS)
            if not is_ignored and (key.startswith(prefix) or part in parts):
                yield key

    for key, actual, expected in sorted(info["mismatched_keys"]):
        check_shape(name, str(key), actual, expected)
    for key in of_encoder(info["missing_keys"]):
        raise ModelError(f"{name} is incomplete: weights of its encoder are missing, {key} first")
    for key in of_encoder(info["unexpected_keys"]):
        raise ModelError(
            f"{name}: config.json does not describe the weight {key}: take the config.json of these weights, or a "
            "stock checkpoint if code of the model uses it, which is never run"
        )


def check_embedding(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ModelError if a token id is beyond the word embedding."""
    highest, num_rows = max(tokenizer.get_vocab().values()), cast(Any, model.get_input_embeddings()).num_embeddings
    if highest >= num_rows:  # ids may have gaps
        raise ModelError(
            f"{name}: its tokenizer has token id {highest}, its word embedding {counted(num_rows, 'row')}: take the "
            f"tokenizer of these weights, or call resize_token_embeddings({highest + 1}) on the model and save it"
        )
