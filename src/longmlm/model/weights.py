"""Compares the weights in a model's files with those that its config.json describes, and names what does not fit."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of, unused_bias
from longmlm.model.files import StoredWeight

REBUILT_BUFFERS = ("position_ids", "token_type_ids")
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of LayerNorms in the first BERT models


def check_stored(name: str, stored: Mapping[str, StoredWeight], described: PreTrainedModel) -> None:
    """Raises ModelError for a stored weight that has another shape than config.json says, or holds no real numbers.

    `described` is the model that config.json describes; it needs no weights.
    """
    parameters = dict(described.named_parameters(remove_duplicate=False))
    prefix = f"{described.base_model_prefix}."
    for key, weight in stored.items():
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
        check_shape(name, key, weight.shape, tuple(parameter.shape))


def check_shape(name: str, key: str, actual: Collection[int], expected: Collection[int]) -> None:
    """Raises ModelError if a weight does not have the shape that config.json specifies."""
    if tuple(actual) != tuple(expected):
        raise ModelError(
            f"{name}: {key} does not have the shape that config.json specifies: it is {_shape(actual)}, not "
            f"{_shape(expected)}; take the config.json of these weights, or an intact checkpoint"
        )


def _shape(sizes: Collection[int]) -> str:
    return " x ".join(map(str, sizes)) or "a single number"


def check_tied(name: str, model: PreTrainedModel) -> None:
    """Raises ModelError if config.json ties two weights whose stored values differ: transformers 5 would keep both."""
    described = model.get_expanded_tied_weights_keys(all_submodels=True)
    for target in sorted(described.keys() - model.all_tied_weights_keys.keys()):
        raise ModelError(
            f"{name}: {target} differs from {described[target]}, and config.json says that they are one weight: set "
            f'"tie_word_embeddings": false in config.json if both are right, or remove {target} from the weights'
        )


@torch.no_grad()
def unite_biases(name: str, model: PreTrainedModel, missing: set[str]) -> list[str]:
    """Gives both biases of a decoder that is not tied to the embedding the same values; returns a note if they differ.

    The head adds only the first. transformers 4 may read either, and stored only one of them: the other is then no
    longer `missing`. The unused one is not trained.
    """
    if (names := unused_bias(model)) is None:
        return []
    used, unused = (model.get_parameter(key) for key in names)
    notes = []
    if missing.isdisjoint(names) and not torch.equal(used, unused):
        notes = [f"{name} has two biases in its MLM head: {names[0]} is used, {names[1]} is not"]
    source, target = (unused, used) if names[0] in missing else (used, unused)
    target.copy_(source)
    unused.requires_grad = False
    if not missing.issuperset(names):
        missing.difference_update(names)
    return notes


def check_missing(
    name: str,
    model: PreTrainedModel,
    info: dict[str, Any],  # transformers' loading info, which it does not document
    new_head: bool,
) -> list[str]:
    """Returns a note about a new head; raises ModelError if there is one already, or other weights do not fit."""
    for key, actual, expected in sorted(info["mismatched_keys"]):
        check_shape(name, str(key), actual, expected)
    missing = sorted(key for key in info["missing_keys"] if not key.endswith(REBUILT_BUFFERS))
    if encoder := [key for key in missing if key.startswith(f"{model.base_model_prefix}.")]:
        raise ModelError(f"{name} is incomplete: weights of its encoder are missing, {encoder[0]} first")
    if not missing and new_head:
        raise ModelError(f"{name} has an MLM head, so new_head has no effect: remove new_head")
    if not missing:
        return []
    encoder_weights = {id(weight) for weight in model.base_model.parameters()}
    head = {key for key, weight in model.named_parameters() if id(weight) not in encoder_weights}
    decoders = {key for key in head if key.endswith("decoder.weight")}
    if {*missing} == decoders and model.config.tie_word_embeddings is False:
        raise ModelError(
            f'{name}: {missing[0]} is missing, and config.json says "tie_word_embeddings": false: set it to true if '
            "the decoder is the word embedding, or take an intact checkpoint"
        )
    if not head <= {*missing}:
        if new_head:
            return [f"{name} has only a part of its MLM head: {', '.join(missing)} untrained"]
        raise ModelError(
            f"{name} has only a part of its MLM head, {missing[0]} is missing: take an intact checkpoint, or set "
            "new_head = true to add what is missing, and train the head at the base length first"
        )
    if new_head:
        return [f"{name} has no MLM head: a new, untrained one was made"]
    if any(key.startswith("lm_predictions.lm_head.") for key in info["unexpected_keys"]):
        raise ModelError(
            f"{name} calls its MLM head lm_predictions, which transformers reads only if config.json has "
            '"legacy": false: set it in a copy of the folder (or, for DeBERTa-v3, which was not trained to predict '
            "masked tokens, set new_head = true and train the new head first)"
        )
    raise ModelError(
        f"{name} has no MLM head ({missing[0]} is missing): take a checkpoint that has one, or set new_head = true "
        "and train the new head at the base length first"
    )


def check_unexpected(name: str, model: PreTrainedModel, unexpected: Collection[str], has_code: bool) -> None:
    """Raises ModelError for a weight of the encoder, other than its pooler, that the config does not describe."""
    prefix = f"{model.base_model_prefix}."
    parts = {part for part, _ in model.base_model.named_children()}  # an encoder saved alone has no prefix
    for key in sorted(unexpected):
        is_known = key.endswith(REBUILT_BUFFERS) or key.startswith(f"{prefix}pooler.")
        if not is_known and (key.startswith(prefix) or key.split(".")[0] in parts):
            remedy = "take a stock checkpoint: its code, which is never run, may use it"
            raise ModelError(
                f"{name}: config.json does not describe the weight {key}: "
                + (remedy if has_code else "take the config.json of these weights")
            )


@torch.no_grad()
def initialise_new_head(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Sets a new head's matrix to the identity if it is square, since its decoder is the tied word embedding."""
    matrix = architecture_of(model).head_matrix
    is_new = any(
        matrix and parameter is matrix.weight for name, parameter in model.named_parameters() if name in missing
    )
    if matrix and is_new and matrix.in_features == matrix.out_features:
        nn.init.eye_(matrix.weight)
