"""Loads an encoder with the head of a task, from a folder or a hub: any encoder in transformers."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import AutoModelForSequenceClassification, LongformerConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_LM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_LM

from longmlm.artifacts.provenance import read_provenance
from longmlm.errors import ModelError, counted
from longmlm.hubs.models import check_has_config, snapshot_of
from longmlm.model.architecture import NUM_GLOBAL
from longmlm.model.families import FAMILIES, check_architecture
from longmlm.model.files import check_model_files
from longmlm.model.loading import (
    LoadedModel,
    check_embedding,
    library_errors,
    load_config,
    load_tokenizer,
    load_weights,
    loading_notes,
)
from longmlm.model.weights import REBUILT_BUFFERS, check_unexpected
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window


def load_for_task(
    auto_class: Any,
    name: str,
    revision: str | None = None,
    seed: int = 0,
    keeps_head: bool = False,
    config_values: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Returns the encoder in a folder or on the hub with the head of one of transformers' Auto classes, in fp32.

    `config_values` are set in its config. The head is initialised with `seed`, also where the checkpoint has a trained
    one, unless `keeps_head` is set; so is the encoder's pooler where the checkpoint has none. The model attends within
    the window that its longmlm.json records, if there is one. A Longformer has a window of its own, in its config.

    Code in a repository is never run. Raises ModelError for a model that is missing, altered or unreadable, with
    missing weights of the encoder or tokenizer, weights that its config does not describe, token ids beyond the word
    embedding, or an architecture without such a head.
    """
    snapshot = snapshot_of(name, revision)
    folder = snapshot.folder
    check_has_config(name, folder)
    check_model_files(folder)
    config, has_code = load_config(name, folder)
    if config.model_type in CAUSAL_LM and config.model_type not in MASKED_LM:
        raise ModelError(
            f"{name} is a {config.model_type} model, which transformers has as a causal language model: take an encoder"
        )
    if config.model_type in FAMILIES:
        check_architecture(config, name)
    for key, value in (config_values or {}).items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    model, info = load_weights(auto_class, name, folder, config)
    _check_encoder(name, model, info)
    replaced = () if keeps_head else _with_new_head(name, model, info, seed)
    check_unexpected(name, model, info["unexpected_keys"], has_code)
    loaded = load_tokenizer(name, folder)
    with library_errors(f"{name} cannot be loaded"):  # some models have a word embedding of a kind of their own
        check_embedding(name, model, loaded.tokenizer)
    provenance = read_provenance(folder)
    if config.model_type == LongformerConfig.model_type:
        replaced += _with_stock_global_tokens(name, model.config, auto_class)
    else:
        use_window(model.base_model, Window.of(provenance.extension))
    notes = (*snapshot.notes, *loading_notes(name, folder, config, has_code), *loaded.notes, *replaced)
    return LoadedModel(model, loaded.tokenizer, snapshot.commit, notes, provenance)


def without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Returns the encoder without its pooler, if it has one."""
    if getattr(encoder, "pooler", None) is not None:
        cast(Any, encoder).pooler = None
    return encoder


def stock_global_tokens(auto_class: Any) -> int:
    """Returns how many tokens of a Longformer are global if nothing says which, as in the pipelines of transformers."""
    return 1 if auto_class is AutoModelForSequenceClassification else 0


def _with_stock_global_tokens(name: str, config: Any, auto_class: Any) -> tuple[str, ...]:
    """Gives a released Longformer as many global tokens as its new class has; returns a note if it had others."""
    before, now = getattr(config, NUM_GLOBAL, None), stock_global_tokens(auto_class)
    if before is None or before == now:
        return ()
    setattr(config, NUM_GLOBAL, now)
    return (f"{name} was trained with {counted(before, 'global token')}; here it has {now or 'none'}, as by default",)


def _with_new_head(name: str, model: PreTrainedModel, info: dict[str, Any], seed: int) -> tuple[str, ...]:
    """Initialises a head that came with the checkpoint anew, with its pooler; returns a note if there was one.

    A head of which a part is missing is not one of a task: ModernBERT's shares a layer with the MLM head, which stays.
    """
    encoder = {id(parameter) for parameter in model.base_model.parameters()}
    head = {key: parameter for key, parameter in model.named_parameters() if id(parameter) not in encoder}
    if not head or head.keys() & {*info["missing_keys"]}:
        return ()
    torch.manual_seed(seed)
    fresh = dict(type(model)(model.config).named_parameters())
    head |= {key: parameter for key, parameter in model.named_parameters() if ".pooler." in key}
    with torch.no_grad():
        for key, parameter in head.items():
            parameter.copy_(fresh[key])
    return (f"{name} has a trained head: it is replaced by a new one",)


def _check_encoder(name: str, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Raises ModelError if weights of the encoder, other than its pooler, are missing or have a different shape."""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    for kind, keys in {
        "has another shape than config.json specifies": {str(key) for key, *_ in info["mismatched_keys"]},
        "is missing": info["missing_keys"],
    }.items():
        for key in sorted(keys):
            is_head = not key.startswith(prefix) or key.startswith(f"{prefix}pooler.")
            if not is_head and not key.endswith(REBUILT_BUFFERS):
                raise ModelError(f"{name}: the weight {key} of its encoder {kind}: take a complete checkpoint")
