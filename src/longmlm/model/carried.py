"""Weights and files of a checkpoint outside its encoder and MLM head, which are carried over untrained."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path
from typing import NamedTuple, Self

import safetensors.torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import Provenance
from longmlm.data.pretrained import save_pretrained
from longmlm.errors import naming
from longmlm.hubs.extra_files import (
    MODULE_WEIGHTS,
    MODULES,
    REWRITTEN_FILES,
    SENTENCE_CONFIGS,
    VOCABULARY_FILES,
    extra_files,
    module_folders,
)
from longmlm.hubs.models import HubSnapshot, weight_files
from longmlm.model.files import load_tensors
from longmlm.model.position_table import with_lengths
from longmlm.progress import quiet_libraries

PARTS = {"pooler": "pooler", "seq_relationship": "NSP head", "sop_classifier": "SOP head"}
POOLING_FILE = "1_Pooling/config.json"
POOLING_KEYS: dict[str, str] = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
ALL_POOLING_KEYS = (*POOLING_KEYS.values(), "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")


class SentenceEmbedding(NamedTuple):
    """How the vectors of a text's tokens are pooled into one."""

    pooling: str
    is_normalized: bool


@dataclass(frozen=True, slots=True)
class Carried:
    """Weights by name, files by path in the model's folder, and the paths of files that are left out."""

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that the weights belong to, such as pooler and NSP head."""
        names = (next((PARTS[key] for key in PARTS if key in name), name.split(".")[0]) for name in self.weights)
        return tuple(dict.fromkeys(names))

    @property
    def lines(self) -> list[str]:
        """Lines for the user about what is carried over and what is left out."""
        left_out = (folder + slash for folder, slash, _ in (name.partition("/") for name in self.left_out))
        lines = {
            "carried over untrained": self.parts,
            "files carried over": sorted(self.files),
            "not carried over": dict.fromkeys(left_out),
        }
        return [f"{what}: {', '.join(names)}" for what, names in lines.items() if names]

    @property
    def modules(self) -> tuple[str, ...]:
        """The classes of the sentence-transformers modules after the encoder, such as Pooling and Normalize."""
        listed = json.loads(self.files.get(MODULES, b"[]"))
        return tuple(str(module["type"]).rpartition(".")[2] for module in listed[1:])

    @property
    def embedding(self) -> SentenceEmbedding | None:
        """How sentence-transformers pools token vectors: by their mean if there are no modules.

        None if there are modules other than Pooling (mean or first token) and Normalize.
        """
        if not self.modules:
            return SentenceEmbedding("mean", is_normalized=False)
        settings = json.loads(self.files.get(POOLING_FILE, b"{}"))
        chosen = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True}
        for pooling, key in POOLING_KEYS.items():
            is_pooled = chosen == {key} or settings.get("pooling_mode") == pooling
            if is_pooled and self.modules in (("Pooling",), ("Pooling", "Normalize")):
                return SentenceEmbedding(pooling, is_normalized="Normalize" in self.modules)
        return None

    def with_length(self, num_positions: int) -> Self:
        """Returns a copy for a sentence-transformers model that reads up to `num_positions` tokens."""
        files = {name: _with_lengths(name, content, num_positions) for name, content in self.files.items()}
        configs = [name for name in files if fnmatch(name, SENTENCE_CONFIGS)]
        if not configs and MODULES in files:
            configs = ["sentence_bert_config.json"]
        for name in configs:
            settings = json.loads(files.get(name, b'{"do_lower_case": false}'))
            files[name] = _json({**settings, "max_seq_length": num_positions})
        return replace(self, files=files)

    def without_vocabulary(self) -> Self:
        """Returns a copy without the vocabulary files, which added tokens make stale; tokenizer.json is rewritten."""
        kept = {
            name: content
            for name, content in self.files.items()
            if not any(fnmatch(name, pattern) for pattern in VOCABULARY_FILES)
        }
        return replace(self, files=kept)

    def with_pooling(self, pooling: str, width: int, num_positions: int) -> Self:
        """Returns a copy with the modules of a sentence-transformers model with this pooling."""
        kinds = {"": "Transformer", "1_Pooling": "Pooling"}
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(kinds.items())
        ]
        settings = {
            "word_embedding_dimension": width,
            **{key: POOLING_KEYS[pooling] == key for key in ALL_POOLING_KEYS},
        }
        files = {**self.files, MODULES: _json(modules), POOLING_FILE: _json(settings)}
        return replace(self, files=files).with_length(num_positions)


def _with_lengths(name: str, content: bytes, num_positions: int) -> bytes:
    """Returns a file of sentence-transformers with all lengths in it set; others are returned as they are."""
    is_settings = name.endswith(".json") and ("/" in name or fnmatch(name, "*sentence_*.json"))
    before = json.loads(content) if is_settings else None
    after = with_lengths(before, num_positions)
    return content if after == before else _json(after)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def read_carried(snapshot: HubSnapshot, unexpected: Collection[str], prefix: str) -> Carried:
    """Returns what a snapshot has to carry over: the weights that its MLM model does not use, and its extra files.

    `unexpected` names these weights. They are returned under their names in a model with a head, where the encoder's
    begin with `prefix`. Nothing is left out of a folder that longmlm wrote. Raises ModelError if a module's weights are
    damaged or hold code.
    """
    folder, names = snapshot.folder, snapshot.names
    weights = {_name_with_head(key, prefix): value for key, value in _tensors(folder, unexpected).items()}
    extra = extra_files(names, module_folders(folder))
    doubled = {name.replace(*MODULE_WEIGHTS[::-1]) for name in extra if name.endswith(MODULE_WEIGHTS[1])}
    paths = [name for name in extra if name not in doubled]
    files = dict(_module_weights(folder / name, name) or (name, (folder / name).read_bytes()) for name in paths)
    known = {*extra, *weight_files(names), *REWRITTEN_FILES}
    left_out = [name for name in names if name not in known and not name.endswith(".index.json") and name[0] != "."]
    return Carried(weights, files, () if Provenance.FILE in names else tuple(left_out))


def _name_with_head(key: str, prefix: str) -> str:
    """Returns a weight's name in a model with a head; a bare encoder is saved without the prefix."""
    return f"{prefix}.{key}" if key.startswith("pooler.") else key


def _tensors(folder: Path, keys: Collection[str]) -> dict[str, Tensor]:
    """Returns the weights with these names, in their stored type."""
    tensors = {}
    for path in (folder / name for name in weight_files([path.name for path in folder.iterdir()]) if keys):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in sorted(set(keys) & set(file.keys()))}
        else:
            content = load_tensors(path)
            tensors |= {key: content[key].contiguous().clone() for key in sorted(set(keys) & set(content))}
    return tensors


def _module_weights(path: Path, name: str) -> tuple[str, bytes] | None:
    """Returns the name and content of a module's weights converted to safetensors; None for a file that is kept."""
    if path.name != MODULE_WEIGHTS[0]:
        return None
    tensors = {key: value.contiguous().clone() for key, value in load_tensors(path).items()}
    return name.replace(*MODULE_WEIGHTS), safetensors.torch.save(tensors)


LARGEST_FILE = "50GB"
LOADING_ARGUMENTS = (  # transformers notes in a tokenizer how it was loaded, and would save that
    *("is_local", "local_files_only", "_commit_hash", "cache_dir", "force_download", "proxies", "revision"),
    *("subfolder", "token", "use_auth_token", "trust_remote_code", "name_or_path", "special_tokens_map_file"),
)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    carried: Carried,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
    max_shard_size: str | None = None,
) -> None:
    """Writes the model, or `weights` in place of its own, and the carried weights into the same files.

    A carried file is skipped if the model or the tokenizer has already written one with its name; how and from where
    the tokenizer was loaded is not saved. Raises OSError when
    the disk is full.
    """
    for name in LOADING_ARGUMENTS:
        tokenizer.init_kwargs.pop(name, None)
    state = {**(model.state_dict() if weights is None else weights), **carried.weights}
    with quiet_libraries(), naming(folder):
        model.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size or LARGEST_FILE)
        save_pretrained(tokenizer, folder, signature(type(model).forward).parameters)
    for path, content in ((folder / name, content) for name, content in carried.files.items()):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
