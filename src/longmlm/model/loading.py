"""Loads a model and its tokenizer from a folder or a hub, or makes a new one from a config."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    LongformerConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_LM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_LM

from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.data.pretrained import Pretrained, load_pretrained
from longmlm.errors import ModelError, UserError, explained
from longmlm.hubs.model_files import CONFIG, local_model_sha256, weight_paths
from longmlm.hubs.models import HubSnapshot, read_architecture, snapshot_of
from longmlm.model.carried import Carried, read_carried
from longmlm.model.checks import (
    check_embedding,
    check_encoder,
    check_model_files,
    check_stored,
    check_tied,
    stored_weights,
)
from longmlm.model.families import COUNTED_FROM_PADDING, FAMILIES, check_architecture, check_reads_pairs
from longmlm.model.heads import complete_heads, replace_task_head
from longmlm.model.position_table import has_position_table, position_table_of, replace_positions, sinusoidal_table
from longmlm.model.window import Window, set_stock_global_tokens
from longmlm.model.window_attention import use_window
from longmlm.progress import quiet_libraries

CALL_OPTIONS = {  # keys of config.json for whoever calls the model, with the values that transformers sets
    "chunk_size_feed_forward": 0,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
    "torchscript": False,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in fp32 with its tokenizer, its history, and what is carried over from its checkpoint.

    `revision` is the commit of a model from a hub; `notes` are lines about the loading that a user should see.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str | None = None
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    carried: Carried = field(default_factory=Carried)

    def provenance_of_run(self, name: str, requested: str | None = None) -> Provenance:
        """Returns the history of a run that starts from this model, which was loaded by `name`."""
        sha256 = local_model_sha256(name) or None
        source = ModelSource(name=name, revision=self.revision, sha256=sha256, requested=requested)
        return self.provenance.of_run(source)


def load_model(name: str, revision: str | None = None, new_head: bool = False, seed: int = 0) -> LoadedModel:
    """Returns the masked language model in a folder or on the hub, in fp32, with all its files from one commit.

    `new_head` adds an MLM head, initialised with `seed`, to a checkpoint without one. Attention is limited to the
    window in longmlm.json, if there is one. Code in a repository is never run: a model with code is loaded as a stock
    model of its family if that takes all its weights.

    Raises ModelError if the model is missing, altered or unreadable; its architecture is not supported; tokenizer or
    weights are missing; weights do not match the config; token ids exceed the word embedding; or it has no MLM head,
    or has one although `new_head` is set.
    """
    return _load_with_heads(AutoModelForMaskedLM, name, revision, new_head, seed)


def load_for_pairs(name: str, revision: str | None = None, new_head: bool = False, seed: int = 0) -> LoadedModel:
    """Returns what load_model does, with the pooler and the pair head too; `new_head` adds what is missing of these."""
    return _load_with_heads(AutoModelForPreTraining, name, revision, new_head, seed)


def load_trained(name: str) -> LoadedModel:
    """Returns what load_model does; a model in a folder that was trained on pairs has its pooler and pair head."""
    return load_for_pairs(name) if read_provenance(name).pairs else load_model(name)


def load_encoder(
    name: str,
    auto_class: Any,
    revision: str | None = None,
    head_seed: int | None = None,
    config_values: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Returns an encoder of any family, or a Longformer, as one of transformers' Auto classes; else as load_model.

    `config_values` are set in its config. With `head_seed`, a trained task head is replaced by a new one, initialised
    with this seed, as is a missing head or pooler.
    """
    snapshot, config, notes = _open(name, revision)
    if config.model_type in CAUSAL_LM and config.model_type not in MASKED_LM:
        raise ModelError(
            f"{name} is a {config.model_type} model, which transformers supports only as a causal language model: "
            "use an encoder"
        )
    if config.model_type in FAMILIES:
        check_architecture(config, name)
    for key, value in (config_values or {}).items():
        setattr(config, key, value)
    model, info = _load_weights(auto_class, name, snapshot.folder, config, head_seed)
    if head_seed is not None:
        notes += replace_task_head(name, model, info["missing_keys"], head_seed)
    if config.model_type == LongformerConfig.model_type:
        notes += set_stock_global_tokens(name, model.config, auto_class)
    return _complete(name, snapshot, model, notes)


def _load_with_heads(auto_class: Any, name: str, revision: str | None, new_head: bool, seed: int) -> LoadedModel:
    snapshot, config, notes = _open(name, revision)
    check_architecture(config, name)
    if auto_class is AutoModelForPreTraining:
        check_reads_pairs(config, name)
    model, info = _load_weights(auto_class, name, snapshot.folder, config, seed if new_head else None)
    notes += complete_heads(name, model, info, new_head)
    loaded = _complete(name, snapshot, model, notes)
    return replace(loaded, carried=read_carried(snapshot, info["unexpected_keys"], model.base_model_prefix))


def _open(name: str, revision: str | None) -> tuple[HubSnapshot, Any, list[str]]:
    """Returns a model's files after checking them, its config, and notes on both."""
    snapshot = snapshot_of(name, revision)
    check_model_files(name, snapshot)
    config, notes = _load_config(name, snapshot.folder)
    return snapshot, config, [*snapshot.notes, *notes]


def _complete(name: str, snapshot: HubSnapshot, model: PreTrainedModel, notes: Sequence[str]) -> LoadedModel:
    """Returns the model with the tokenizer and the history in its folder, attending within its window."""
    loaded = load_tokenizer(name, snapshot.folder)
    with library_errors(f"{name} cannot be loaded"):  # some models have a word embedding of a kind of their own
        check_embedding(name, model, loaded.tokenizer)
    provenance = read_provenance(snapshot.folder)
    if model.config.model_type != LongformerConfig.model_type:  # its window is in its config
        use_window(cast(PreTrainedModel, model.base_model), Window.of(provenance.extension))
    return LoadedModel(model, loaded.tokenizer, snapshot.commit, (*notes, *loaded.notes), provenance)


def class_for(pairs: object) -> Any:
    """Returns the Auto class of a model that is trained on masked tokens and, if there are `pairs`, on pairs."""
    return AutoModelForPreTraining if pairs else AutoModelForMaskedLM


def new_model(config_file: str, tokenizer_name: str, seed: int, pairs: bool = False) -> LoadedModel:
    """Returns an untrained model of the architecture in a transformers config.json, with the tokenizer's special ids.

    For `pairs`, it has a pooler and a pair head too.

    Weights are initialised by transformers; positions start as sinusoids with the same standard deviation. Raises
    ModelError for a file that cannot be used, and for a vocabulary smaller than the tokenizer's.
    """
    loaded = load_tokenizer(tokenizer_name, snapshot_of(tokenizer_name, with_weights=False).folder)
    tokenizer = loaded.tokenizer
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    special = {name: token_id for name in names if (token_id := getattr(tokenizer, name)) is not None}
    with library_errors(f"{config_file} does not describe a model"):
        config = _config_in(config_file, **special)
        if config.vocab_size <= (highest := max(tokenizer.get_vocab().values())):
            raise ModelError(
                f"{config_file}: vocab_size = {config.vocab_size}, but the tokenizer has token id {highest}: set it to "
                f"{highest + 1} or more"
            )
        if pairs:
            check_reads_pairs(config, config_file)
        torch.manual_seed(seed)
        model = class_for(pairs).from_config(config, dtype=torch.float32)
    if has_position_table(model):
        num_positions, width = position_table_of(model).usable_rows.shape
        replace_positions(model, sinusoidal_table(num_positions, width, config.initializer_range))
    return LoadedModel(model, tokenizer, notes=loaded.notes)


def _config_in(config_file: str, **special: Any) -> PretrainedConfig:  # Any: as for_model's arguments
    """Returns the config in a file, with the `special` token ids in place of its own; raises the libraries' errors."""
    config = AutoConfig.for_model(**{**read_architecture(config_file), **special})
    check_architecture(config, config_file)
    return config


def meta_model(name: str | None, revision: str | None = None, architecture: str | None = None) -> PreTrainedModel:
    """Returns a model in a folder or on the hub, or one built from an architecture's config.json, on the meta device.

    It has shapes but no weights: only config.json is read, and no weights are downloaded. Raises ModelError as
    load_model and new_model do.
    """
    with library_errors(f"{name or architecture} does not describe a model"), torch.device("meta"):
        if name is None:
            return AutoModelForMaskedLM.from_config(_config_in(str(architecture)))
        folder = snapshot_of(name, revision, with_weights=False).folder
        config, _ = _load_config(name, folder)
        check_architecture(config, name)
        model = AutoModelForMaskedLM.from_config(config)
    use_window(model, Window.of(read_provenance(folder).extension))
    return model


@contextmanager
def library_errors(failure: str) -> Iterator[None]:
    """Turns any exception from the libraries into a ModelError: `failure` and the beginning of their message."""
    try:
        with quiet_libraries():
            yield
    except UserError:
        raise
    except Exception as error:  # the libraries raise types of their own, and messages from empty to pages long
        words = textwrap.shorten(str(error).split(". ")[0], 200)
        kind = "" if " " in words else f"{type(error).__name__} "  # as in KeyError 'swish'
        reason = explained(error) or f"{kind}{words}".strip()
        raise ModelError(f"{failure}: {reason}") from error


def _load_config(name: str, folder: Path) -> tuple[Any, list[str]]:  # Any: each family's config has its own attributes
    """Returns the config of the folder's stock model, and notes on what the folder has beyond the model."""
    has_code = "auto_map" in read_architecture(str(folder / CONFIG))
    needs_code = " without its code, and code in a repository is never run; take a stock checkpoint" if has_code else ""
    with library_errors(f"{name} cannot be loaded{needs_code}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.model_type in COUNTED_FROM_PADDING and not isinstance(config.pad_token_id, int):
        raise ModelError(
            f"{name}: config.json has no pad_token_id, from which the positions of a {config.model_type} model are "
            "counted: set it to the id of the tokenizer's padding token"
        )
    notes = []
    if has_code:
        delattr(config, "auto_map")
        notes.append(f"{name} has code of its own, which was not run: loaded as a stock {config.model_type} model")
    if not any(path.suffix == ".safetensors" for path in weight_paths(folder)):
        notes.append(f"{name} has no safetensors file: its pytorch_model.bin was read as tensors only")
    if unused := [key for key, stock in CALL_OPTIONS.items() if getattr(config, key, stock) != stock]:
        notes.append(
            f"{name}: {', '.join(unused)} in its config.json change what a call returns or how much memory it takes, "
            "not what the model predicts: the long model does not have them"
        )
    for key in unused:
        setattr(config, key, CALL_OPTIONS[key])
    return config, notes


def _load_weights(
    auto_class: Any, name: str, folder: Path, config: Any, head_seed: int | None
) -> tuple[Any, dict[str, Any]]:
    """Returns the model in a folder, in fp32, of one of transformers' Auto classes, and transformers' loading info.

    A missing head is initialised with `head_seed`. Raises ModelError for weights of the encoder that are missing,
    cannot be read, or that the config describes otherwise.
    """
    if head_seed is not None:
        torch.manual_seed(head_seed)
    stored = stored_weights(folder, "meta")
    failure = f"{name}: its config.json does not describe a model that transformers can build"
    with library_errors(failure), torch.device("meta"):
        described = auto_class.from_config(config) if hasattr(auto_class, "from_config") else auto_class(config)
    check_stored(name, stored, described)
    with library_errors(f"{name} cannot be loaded"):
        model, info = auto_class.from_pretrained(
            folder,
            config=config,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    check_tied(name, model)
    check_encoder(name, model, info)
    return model, info


def load_tokenizer(name: str, folder: Path) -> Pretrained:
    """Returns the tokenizer in a folder; raises ModelError if there is none."""
    with library_errors(f"{name}: its tokenizer cannot be loaded"):
        loaded = load_pretrained(name, folder)
    # without any files, transformers makes up a tokenizer of special tokens only
    tokenizer = loaded.tokenizer
    if tokenizer is None or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ModelError(f"{name} has no tokenizer: put the files of its tokenizer next to its weights")
    return loaded
