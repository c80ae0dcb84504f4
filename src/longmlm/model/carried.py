"""Weights and files of a checkpoint outside its encoder and MLM head, which are carried over untrained."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path
from typing import NamedTuple, Self

import safetensors.torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.artifacts.provenance import Provenance
from longmlm.data.pretrained import save_pretrained
from longmlm.errors import naming
from longmlm.hubs.model_files import (
    MODULE_WEIGHTS,
    MODULES,
    REWRITTEN_FILES,
    SENTENCE_CONFIGS,
    VOCABULARY_FILES,
    weight_files,
)
from longmlm.hubs.models import HubSnapshot
from longmlm.model.checks import REBUILT_BUFFERS, load_tensors, stored_weights
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
        files = dict(self.files)
        configs = [name for name in files if fnmatch(name, SENTENCE_CONFIGS)]
        if not configs and MODULES in files:
            configs = ["sentence_bert_config.json"]
            files[configs[0]] = b'{"do_lower_case": false}'
        for name, content in files.items():
            if name.endswith(".json") and ("/" in name or fnmatch(name, "*sentence_*.json")):
                before = json.loads(content)
                after = with_lengths(before, num_positions)
                if name in configs:
                    after["max_seq_length"] = num_positions
                files[name] = content if after == before else _json(after)
        return replace(self, files=files)

    def without_vocabulary(self) -> Self:
        """Returns a copy without the vocabulary files, which added tokens make stale; tokenizer.json is rewritten."""
        stale = {name for name in self.files for pattern in VOCABULARY_FILES if fnmatch(name, pattern)}
        return replace(self, files={name: content for name, content in self.files.items() if name not in stale})

    def with_pooling(self, pooling: str, width: int, num_positions: int) -> Self:
        """Returns a copy with the modules of a sentence-transformers model with this pooling."""
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ]
        settings = {
            "word_embedding_dimension": width,
            **{key: POOLING_KEYS[pooling] == key for key in ALL_POOLING_KEYS},
        }
        files = {**self.files, MODULES: _json(modules), POOLING_FILE: _json(settings)}
        return replace(self, files=files).with_length(num_positions)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def read_carried(snapshot: HubSnapshot, unexpected: Collection[str], prefix: str) -> Carried:
    """Returns what a snapshot has to carry over: the weights that its MLM model does not use, and its extra files.

    `unexpected` names these weights. They are returned under their names in a model with a head, where the encoder's
    begin with `prefix`. Nothing is left out of a folder that longmlm wrote. Raises ModelError if a module's weights are
    damaged or hold code.
    """
    names, extra = snapshot.names, snapshot.extra
    unused = sorted(key for key in unexpected if not key.endswith(REBUILT_BUFFERS))
    stored = stored_weights(snapshot.folder) if unused else {}
    weights = {
        f"{prefix}.{key}" if key.startswith("pooler.") else key: stored[key].contiguous().clone()
        for key in unused
        if key in stored
    }
    doubled = {name.replace(*MODULE_WEIGHTS[::-1]) for name in extra if name.endswith(MODULE_WEIGHTS[1])}
    files = dict(_carried_file(snapshot.folder, name) for name in extra if name not in doubled)
    known = {*extra, *weight_files(names), *REWRITTEN_FILES}
    left_out = [name for name in names if name not in known and not name.endswith(".index.json") and name[0] != "."]
    return Carried(weights, files, () if Provenance.FILE in names else tuple(left_out))


def _carried_file(folder: Path, name: str) -> tuple[str, bytes]:
    """Returns the name and content of a file; a module's weights are converted to safetensors."""
    path = folder / name
    if path.name != MODULE_WEIGHTS[0]:
        return name, path.read_bytes()
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
    the tokenizer was loaded is not saved. Raises OSError when the disk is full.
    """
    for name in LOADING_ARGUMENTS:
        tokenizer.init_kwargs.pop(name, None)
    state = {**(model.state_dict() if weights is None else weights), **carried.weights}
    with quiet_libraries(), naming(folder):
        model.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size or LARGEST_FILE)
        save_pretrained(tokenizer, folder, signature(type(model).forward).parameters)
    for name, content in carried.files.items():
        if not (path := folder / name).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
