"""A folder, a hub name or a bare architecture to a masked language model with its tokenizer."""

import hashlib
import json
import pickle
import textwrap
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers.utils.logging as transformers_logging
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from longmlm.errors import ModelError
from longmlm.folders import sha256_of
from longmlm.hubs.models import snapshot_of
from longmlm.model.architecture import architecture_of, check_architecture, replace_positions
from longmlm.model.files import check_model_files
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
    """Returns the masked language model in a folder or on the hub, in fp32, all of one commit.

    Code in a repository is never run: a model that brings some is read as the stock one of its family, if that takes
    all its weights. Raises ModelError when it is absent, altered or unreadable, when its architecture does not suit,
    when weights or tokenizer are missing, when there are weights that the config has no place for or token ids beyond
    the word embedding, and when only its MLM head is missing unless `new_head` allows a new one, drawn by `seed`.
    """
    found = snapshot_of(name, revision)
    folder = found.folder
    check_model_files(folder)
    config = _load_config(name, folder)
    if new_head:
        torch.manual_seed(seed)
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=config,
            trust_remote_code=False,
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
    notes = [*found.notes, *_judged(name, model, info, new_head)]
    has_code = asks_for_code(folder)
    _refuse_leftover(name, model, info["unexpected_keys"], has_code)
    if has_code:
        family = model.config.model_type
        notes.append(f"{name} brings code of its own, which was not run: it was read as a stock {family} model")
    _begin_head(model, info["missing_keys"])
    tokenizer = _load_tokenizer(name, folder)
    if (needed := _rows_needed(tokenizer)) > (num_rows := model.get_input_embeddings().num_embeddings):
        raise ModelError(
            f"{name}: its tokenizer has token id {needed - 1}, its word embedding {num_rows} rows: take the tokenizer "
            f"of these weights, or call resize_token_embeddings({needed}) on the model and save it"
        )
    if not any(folder.glob("*.safetensors")):
        notes.append(f"{name} has no safetensors file: its pytorch_model.bin was read as tensors only")
    return LoadedModel(model, tokenizer, found.commit, tuple(notes))


def _refuse_leftover(name: str, model: PreTrainedModel, unexpected: Collection[str], has_code: bool) -> None:
    """Raises ModelError for a weight of the encoder that the model has no place for; a pooler is never needed."""
    prefix = f"{model.base_model_prefix}."
    parts = {part for part, _ in model.base_model.named_children()}  # an encoder saved alone has no prefix
    keys = [key for key in sorted(unexpected) if key.startswith(prefix) or key.split(".")[0] in parts]
    leftover = [key for key in keys if not key.endswith(BUILT_ANEW) and not key.startswith(f"{prefix}pooler.")]
    if leftover and has_code:
        raise ModelError(
            f"{name} brings code of its own, which is never run, and {leftover[0]}, which no stock "
            f"{model.config.model_type} model has: take a stock checkpoint"
        )
    if leftover:
        raise ModelError(
            f"{name} has {leftover[0]} among its weights, for which its config.json has no place: take the config.json "
            "of these weights"
        )


@torch.no_grad()
def _begin_head(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Lets a new head's matrix begin as the identity where it is square: its decoder is the tied word embeddings."""
    transform = architecture_of(model).head_transform.weight
    is_new = any(parameter is transform for name, parameter in model.named_parameters() if name in missing)
    if is_new and transform.shape[0] == transform.shape[1]:
        nn.init.eye_(transform)


def new_model(config_file: str, tokenizer_name: str, seed: int) -> LoadedModel:
    """Returns an untrained model of the architecture in a transformers config.json, with the tokenizer's special ids.

    Weights are drawn as transformers draws them; only the positions begin as sinusoids of the same deviation.
    Raises ModelError when the file cannot be used, or its vocabulary has no place for one of the tokenizer's ids.
    """
    try:
        described = dict(json.loads(Path(config_file).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{config_file} is no transformers config.json: {error}") from error
    tokenizer = _load_tokenizer(tokenizer_name, snapshot_of(tokenizer_name, with_weights=False).folder)
    special = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    try:
        config = AutoConfig.for_model(**described | {key: value for key, value in special.items() if value is not None})
        check_architecture(config, config_file)
        if config.vocab_size < (needed := _rows_needed(tokenizer)):
            raise ModelError(
                f"{config_file}: vocab_size = {config.vocab_size}, but the tokenizer has token id {needed - 1}: set it "
                f"to {needed} or more"
            )
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
    try:
        path = snapshot_of(name, revision, with_weights=False).folder / PROVENANCE
    except ModelError:  # there is no such model, which is told where it is loaded
        return {}
    if not path.is_file():
        return {}
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


def _load_config(name: str, folder: Path) -> Any:
    """Returns the config of the folder's stock model; what it says of code is left out."""
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        if asks_for_code(folder):
            raise ModelError(
                f"{name} needs code of its own, and code in a repository is never run: take a stock checkpoint"
            ) from error
        raise ModelError(
            f"{name} is neither a folder with a model nor one that the hub gives: {_reason(error)}"
        ) from error
    check_architecture(config, name)
    if asks_for_code(folder):
        del config.auto_map
    return config


def asks_for_code(folder: Path) -> bool:
    """Tells whether the folder's config names classes of its own."""
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map"))
    return False


def _load_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{name}: its tokenizer cannot be loaded: {_reason(error)}") from error
    if tokenizer is None or len(tokenizer) <= len(
        tokenizer.all_special_ids
    ):  # what transformers makes up where there are no files
        raise ModelError(f"{name} has no tokenizer: put the files of its tokenizer beside its weights")
    tokenizer.init_kwargs.pop("auto_map", None)
    return tokenizer


def _rows_needed(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns how many rows an embedding of all the tokenizer's ids has: more than tokens where ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


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
