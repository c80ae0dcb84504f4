"""A folder, a hub name or a bare architecture to a masked language model with its tokenizer."""

import hashlib
import json
import pickle
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers.utils.logging as transformers_logging
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from longmlm.errors import ModelError
from longmlm.folders import sha256_of
from longmlm.model.architecture import architecture_of, refuse_unsuitable, replace_positions
from longmlm.model.positions import sinusoidal_table

PROVENANCE = "longmlm.json"
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()  # what a checkpoint lacks is said here, in one line
BUILT_ANEW = ("position_ids", "token_type_ids")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in fp32 with its tokenizer, the commit that a hub name resolved to, and what was said on the way."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str | None
    notes: tuple[str, ...]


def load_model(name: str, revision: str | None = None, new_head: bool = False, seed: int = 0) -> LoadedModel:
    """Returns the masked language model in a folder or on the hub, in fp32; code in a repository is never run.

    Raises ModelError when it is absent or unreadable, when its architecture does not suit, when weights or tokenizer
    are missing, and when only its MLM head is missing unless `new_head` allows a new one, drawn by `seed`.
    """
    config = _load_config(name, revision)
    _refuse_strange_shards(Path(name))
    if new_head:
        torch.manual_seed(seed)
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(
            name,
            config=config,
            revision=revision or "main",
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{name}: its pytorch_model.bin is damaged or holds more than tensors, and was not read: take a checkpoint "
            "with safetensors"
        ) from error
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{name} cannot be loaded: {_reason(error)}") from error
    notes = _judged(name, model, info, new_head)
    _begin_head(model, info["missing_keys"])
    tokenizer = _load_tokenizer(name, revision)
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        notes.append(f"{name} has no safetensors file: its pytorch_model.bin was read as tensors only")
    return LoadedModel(model, tokenizer, getattr(config, "_commit_hash", None), tuple(notes))


@torch.no_grad()
def _begin_head(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Lets a new head's matrix begin as the identity where it is square: its decoder is the tied word embeddings."""
    transform = architecture_of(model).head_transform.weight
    is_new = any(parameter is transform for name, parameter in model.named_parameters() if name in missing)
    if is_new and transform.shape[0] == transform.shape[1]:
        nn.init.eye_(transform)


def _refuse_strange_shards(folder: Path) -> None:
    """Raises ModelError when an index in the folder names a file outside it, which transformers would open."""
    for index in folder.glob("*.index.json") if folder.is_dir() else ():
        try:
            shards = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is damaged: it maps no weights to files") from error
        if strange := [shard for shard in shards if Path(str(shard)).name != shard]:
            raise ModelError(f"{index} names a file outside its folder, {strange[0]}: do not use this checkpoint")


def new_model(config_file: str, tokenizer_name: str, seed: int) -> LoadedModel:
    """Returns an untrained model of the architecture in a transformers config.json, with the tokenizer's special ids.

    Weights are drawn as transformers draws them; only the positions begin as sinusoids of the same deviation.
    Raises ModelError when the file cannot be used, or its vocabulary is smaller than the tokenizer's.
    """
    try:
        described = dict(json.loads(Path(config_file).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{config_file} is no transformers config.json: {error}") from error
    tokenizer = _load_tokenizer(tokenizer_name, None)
    special = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    try:
        config = AutoConfig.for_model(**described | {key: value for key, value in special.items() if value is not None})
        refuse_unsuitable(config, config_file)
        if config.vocab_size < (needed := len(tokenizer)):
            raise ModelError(f"{config_file}: vocab_size {config.vocab_size} is less than the tokenizer's {needed}")
        torch.manual_seed(seed)
        model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    except ModelError:
        raise
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{config_file} describes no model: {_reason(error)}") from error
    parts = architecture_of(model)
    width = parts.position_table.embedding_dim
    replace_positions(model, sinusoidal_table(parts.num_positions, width, config.initializer_range))
    return LoadedModel(model, tokenizer, None, ())


def read_provenance(name: str, revision: str | None = None) -> dict[str, Any]:
    """Returns what longmlm.json beside a long checkpoint, local or on the hub, says of it; empty for other models."""
    quietly = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    try:
        found = cached_file(name, PROVENANCE, revision=revision or "main", **quietly)
    except OSError:  # there is no such model, which is told where it is loaded
        return {}
    if found is None:
        return {}
    path = Path(found)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is damaged: it is no JSON") from error


def history_of(checkpoint: str, revision: str | None) -> dict[str, Any]:
    """Returns what longmlm.json is to say of a run that begins with a checkpoint."""
    earlier = read_provenance(checkpoint, revision)
    before = [*earlier.get("trained_before", ()), *([earlier["trained"]] if earlier.get("trained") else ())]
    return {**earlier, "started_from": checkpoint, "started_from_revision": revision, "trained_before": before}


def weights_sha256(name: str | Path) -> str:
    """Returns the SHA-256 of a local model's weight files together, which tells one trained model from another.

    Raises ModelError when there are none.
    """
    files = sorted(Path(name).glob("*.safetensors")) or sorted(Path(name).glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{name} is no folder with model.safetensors or pytorch_model.bin in it")
    return hashlib.sha256("".join(sha256_of(file) for file in files).encode()).hexdigest()


def _load_config(name: str, revision: str | None) -> Any:
    try:
        config = AutoConfig.from_pretrained(name, revision=revision or "main", trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(
            f"{name} is neither a folder with a model nor one that the hub gives: {_reason(error)}"
        ) from error
    refuse_unsuitable(config, name)
    return config


def _load_tokenizer(name: str, revision: str | None) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision or "main", trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{name}: its tokenizer cannot be loaded: {_reason(error)}") from error
    if tokenizer is None or len(tokenizer) <= len(
        tokenizer.all_special_ids
    ):  # what transformers makes up where there are no files
        raise ModelError(f"{name} has no tokenizer: put the files of its tokenizer beside its weights")
    return tokenizer


def _reason(error: Exception) -> str:
    """Returns the beginning of what a library said, which may be pages or nothing."""
    return textwrap.shorten(str(error).split(". ")[0], 200) or type(error).__name__


def _judged(name: str, model: PreTrainedModel, info: dict[str, Any], new_head: bool) -> list[str]:
    if mismatched := sorted(str(key) for key, *_ in info["mismatched_keys"]):
        raise ModelError(f"{name}: {mismatched[0]} does not have the shape that its config.json says")
    missing = sorted(key for key in info["missing_keys"] if not key.endswith(BUILT_ANEW))
    prefix = f"{model.base_model_prefix}."
    if encoder := [key for key in missing if key.startswith(prefix)]:
        raise ModelError(f"{name} lacks weights of its encoder, {encoder[0]} first: the file is not whole")
    if missing and not new_head:
        raise ModelError(
            f"{name} has no MLM head ({missing[0]} is missing): take a checkpoint that has one, or set new_head = true "
            "and train the new head at the base length first"
        )
    return [f"{name} had no MLM head: a new, untrained one was made"] if missing else []
