"""Loads a masked language model and its tokenizer from a folder or a hub, or makes a new one from a config."""

import hashlib
import json
import pickle
import textwrap
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.errors import ModelError
from longmlm.folders import sha256_of
from longmlm.hubs.models import snapshot_of, weight_files
from longmlm.model.architecture import architecture_of, check_architecture, replace_positions
from longmlm.model.files import check_model_files
from longmlm.model.positions import sinusoidal_table
from longmlm.model.quiet import quiet_transformers

REBUILT_BUFFERS = ("position_ids", "token_type_ids")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in fp32 with its tokenizer and its history; `revision` is the commit that a hub name resolved to.

    `notes` are lines about the loading that a user should see.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str | None = None
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)

    def provenance_of_run(self, name: str) -> Provenance:
        """Returns the history of a run that starts from this model, which was loaded by `name`."""
        return self.provenance.of_run(ModelSource(name=name, revision=self.revision))


def load_model(name: str, revision: str | None = None, new_head: bool = False, seed: int = 0) -> LoadedModel:
    """Returns the masked language model in a folder or on the hub, in fp32, with all its files from one commit.

    Code in a repository is never run: a model that brings code is read as a stock model of its family, provided that
    this takes all its weights. Raises ModelError for a model that is missing, altered or unreadable, whose architecture
    cannot be extended, which lacks weights or a tokenizer, which has weights that its config does not describe or token
    ids beyond the word embedding, and for a missing MLM head, unless `new_head` allows a new one, drawn with `seed`.
    """
    snapshot = snapshot_of(name, revision)
    folder = snapshot.folder
    check_model_files(folder)
    config = _load_config(name, folder)
    if new_head:
        torch.manual_seed(seed)
    try:
        with quiet_transformers():
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
    notes = [*snapshot.notes, *_check_missing(name, model, info, new_head)]
    has_code = asks_for_code(folder)
    _check_unexpected(name, model, info["unexpected_keys"], has_code)
    if has_code:
        family = model.config.model_type
        notes.append(f"{name} brings code of its own, which was not run: it was read as a stock {family} model")
    _initialise_new_head(model, info["missing_keys"])
    tokenizer = _load_tokenizer(name, folder)
    if (needed := _rows_needed(tokenizer)) > (num_rows := model.get_input_embeddings().num_embeddings):
        raise ModelError(
            f"{name}: its tokenizer has token id {needed - 1}, its word embedding {num_rows} rows: take the tokenizer "
            f"of these weights, or call resize_token_embeddings({needed}) on the model and save it"
        )
    if not any(path.suffix == ".safetensors" for path in _weight_paths(folder)):
        notes.append(f"{name} has no safetensors file: its pytorch_model.bin was read as tensors only")
    return LoadedModel(model, tokenizer, snapshot.commit, tuple(notes), read_provenance(folder))


def new_model(config_file: str, tokenizer_name: str, seed: int) -> LoadedModel:
    """Returns an untrained model of the architecture in a transformers config.json, with the tokenizer's special ids.

    Weights are drawn as transformers draws them, except positions, which start as sinusoids of the same deviation.
    Raises ModelError for a file that cannot be used, and for a vocabulary smaller than the tokenizer's.
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
        with quiet_transformers():
            model = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    except ModelError:
        raise
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{config_file} describes no model: {_reason(error)}") from error
    parts = architecture_of(model)
    width = parts.position_table.embedding_dim
    replace_positions(model, sinusoidal_table(parts.num_positions, width, config.initializer_range))
    return LoadedModel(model, tokenizer)


def weights_sha256(folder: str | Path) -> str:
    """Returns one SHA-256 of all weight files in a local folder, to identify a trained model.

    Raises ModelError if there are none.
    """
    if not (paths := _weight_paths(Path(folder))):
        raise ModelError(f"{folder} is no folder with model.safetensors or pytorch_model.bin in it")
    return hashlib.sha256("".join(sha256_of(path) for path in paths).encode()).hexdigest()


def asks_for_code(folder: Path) -> bool:
    """Returns whether the folder's config names classes of its own."""
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map"))
    return False


def _weight_paths(folder: Path) -> list[Path]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in weight_files(names)]


def _load_config(name: str, folder: Path) -> Any:
    """Returns the config of the folder's stock model, without what it says of code."""
    try:
        with quiet_transformers():
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


def _load_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the libraries below raise types of their own
        raise ModelError(f"{name}: its tokenizer cannot be loaded: {_reason(error)}") from error
    # without any files, transformers makes up a tokenizer of special tokens only
    if tokenizer is None or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(f"{name} has no tokenizer: put the files of its tokenizer next to its weights")
    tokenizer.init_kwargs.pop("auto_map", None)
    return tokenizer


def _rows_needed(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the number of embedding rows for all the tokenizer's ids: more than its tokens if the ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def _reason(error: Exception) -> str:
    """Returns the beginning of a library's message, which may be empty or pages long."""
    return textwrap.shorten(str(error).split(". ")[0], 200) or type(error).__name__


# info is transformers' loading info, a dict that it does not document
def _check_missing(name: str, model: PreTrainedModel, info: dict[str, Any], new_head: bool) -> list[str]:
    """Returns a note about a new head; raises ModelError if other weights are missing, or have another shape."""
    if mismatched := sorted(str(key) for key, *_ in info["mismatched_keys"]):
        raise ModelError(f"{name}: {mismatched[0]} does not have the shape that its config.json says")
    missing = sorted(key for key in info["missing_keys"] if not key.endswith(REBUILT_BUFFERS))
    prefix = f"{model.base_model_prefix}."
    if encoder := [key for key in missing if key.startswith(prefix)]:
        raise ModelError(f"{name} lacks weights of its encoder, {encoder[0]} first: the file is incomplete")
    if missing and not new_head:
        raise ModelError(
            f"{name} has no MLM head ({missing[0]} is missing): take a checkpoint that has one, or set new_head = true "
            "and train the new head at the base length first"
        )
    return [f"{name} has no MLM head: a new, untrained one was made"] if missing else []


def _check_unexpected(name: str, model: PreTrainedModel, unexpected: Collection[str], has_code: bool) -> None:
    """Raises ModelError for a weight of the encoder that the config does not describe; a pooler is never needed."""
    prefix = f"{model.base_model_prefix}."
    parts = {part for part, _ in model.base_model.named_children()}  # an encoder saved alone has no prefix
    keys = [key for key in sorted(unexpected) if key.startswith(prefix) or key.split(".")[0] in parts]
    leftover = [key for key in keys if not key.endswith(REBUILT_BUFFERS) and not key.startswith(f"{prefix}pooler.")]
    if leftover and has_code:
        raise ModelError(
            f"{name} brings code of its own, which is never run, and {leftover[0]}, which no stock "
            f"{model.config.model_type} model has: take a stock checkpoint"
        )
    if leftover:
        raise ModelError(
            f"{name} has {leftover[0]} among its weights, which its config.json does not describe: take the "
            "config.json of these weights"
        )


@torch.no_grad()
def _initialise_new_head(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Sets a new head's matrix to the identity if it is square, since its decoder is the tied word embedding."""
    matrix = architecture_of(model).head_matrix.weight
    is_new = any(parameter is matrix for name, parameter in model.named_parameters() if name in missing)
    if is_new and matrix.shape[0] == matrix.shape[1]:
        nn.init.eye_(matrix)
