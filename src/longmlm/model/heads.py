"""The heads of a loaded model: whether its checkpoint has them, and new ones in place of them."""

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.errors import ModelError
from longmlm.model.architecture import architecture_of, parts_of, unused_bias
from longmlm.model.checks import REBUILT_BUFFERS


def complete_heads(name: str, model: PreTrainedModel, info: dict[str, Any], new_head: bool) -> list[str]:
    """Makes missing parts of the MLM head and, in a model for pairs, of pooler and pair head if `new_head` allows it.

    `info` is the loading info of transformers. Returns notes on the heads.

    Raises ModelError if a head, or a part of it, is missing without `new_head`, or if `new_head` is set needlessly.
    """
    notes, of_pairs = _unite_biases(name, model, info["missing_keys"]), pair_parameters(model)
    all_missing = sorted(key for key in info["missing_keys"] if not key.endswith(REBUILT_BUFFERS))
    missing = [key for key in all_missing if key not in of_pairs]
    if not all_missing and new_head:
        heads = "an MLM head and a pair head" if of_pairs else "an MLM head"
        raise ModelError(f"{name} has {heads}, so new_head has no effect: remove new_head")
    if missing:
        notes += _complete_mlm_head(name, model, info, missing, new_head)
    if missing_pair := [key for key in all_missing if key in of_pairs]:
        is_part = len(missing_pair) < len(of_pairs)
        has = f"only a part of its pooler and pair head, {missing_pair[0]} is missing" if is_part else "no pair head"
        if not new_head:
            raise ModelError(
                f"{name} has {has}: take a checkpoint that has one, set new_head = true under [start] to add an "
                "untrained one, or remove [recipe.pairs]"
            )
        notes += [f"{name} has {has}: {', '.join(missing_pair)} untrained"]
    return notes


def _complete_mlm_head(
    name: str, model: PreTrainedModel, info: dict[str, Any], missing: list[str], new_head: bool
) -> list[str]:
    """Makes these missing parts of the MLM head, or raises ModelError; returns a note."""
    head = head_of(model).keys() - pair_parameters(model).keys()
    decoders = {key for key in head if key.endswith("decoder.weight")}
    if {*missing} == decoders and model.config.tie_word_embeddings is False:
        raise ModelError(
            f'{name}: {missing[0]} is missing, and config.json says "tie_word_embeddings": false: set it to true if '
            "the decoder is the word embedding, or take an intact checkpoint"
        )
    is_part = not head <= {*missing}
    if new_head:
        _start_as_identity(model, missing)
        if is_part:
            return [f"{name} has only a part of its MLM head: {', '.join(missing)} untrained"]
        return [f"{name} has no MLM head: a new, untrained one was made"]
    if is_part:
        raise ModelError(
            f"{name} has only a part of its MLM head, {missing[0]} is missing: take an intact checkpoint, or set "
            "new_head = true to add what is missing, and train the head at the base length first"
        )
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


def head_of(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Returns the parameters outside the model's encoder."""
    encoder = {id(parameter) for parameter in model.base_model.parameters()}
    return {key: parameter for key, parameter in model.named_parameters() if id(parameter) not in encoder}


def pair_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Returns the parameters of pooler and pair head of a model for pairs; none of another model."""
    if (head := parts_of(model).pair_head) is None:
        return {}
    own = {id(parameter) for part in (head, cast(Any, model.base_model).pooler) for parameter in part.parameters()}
    return {key: parameter for key, parameter in model.named_parameters() if id(parameter) in own}


@torch.no_grad()
def _unite_biases(name: str, model: PreTrainedModel, missing: set[str]) -> list[str]:
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


@torch.no_grad()
def _start_as_identity(model: PreTrainedModel, missing: Collection[str]) -> None:
    """Sets a new head's matrix to the identity if it is square, since its decoder is the tied word embedding."""
    matrix = architecture_of(model).head_matrix
    is_new = any(
        matrix and parameter is matrix.weight for name, parameter in model.named_parameters() if name in missing
    )
    if matrix and is_new and matrix.in_features == matrix.out_features:
        nn.init.eye_(matrix.weight)


def replace_task_head(name: str, model: PreTrainedModel, missing: Collection[str], seed: int) -> list[str]:
    """Replaces a trained task head, with its pooler, by a newly initialised one; returns a note if there was one.

    A head with a missing part is not a task head: ModernBERT's shares a layer with the MLM head, which is kept.
    """
    head = head_of(model)
    if not head or head.keys() & {*missing}:
        return []
    torch.manual_seed(seed)
    fresh = dict(type(model)(model.config).named_parameters())
    head |= {key: parameter for key, parameter in model.named_parameters() if ".pooler." in key}
    with torch.no_grad():
        for key, parameter in head.items():
            parameter.copy_(fresh[key])
    return [f"{name} has a trained head: it is replaced by a new one"]
