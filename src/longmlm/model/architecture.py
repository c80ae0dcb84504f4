"""A transformers model to its parts: the one place that knows where a family keeps what."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from longmlm.errors import ModelError

REFUSED = {
    "deberta": "relative positions",
    "deberta-v2": "relative positions",
    "mpnet": "relative positions",
    "t5": "relative positions",
    "xlnet": "relative positions",
    "nezha": "relative positions",
    "roformer": "rotary positions",
    "modernbert": "rotary positions",
    "nomic_bert": "rotary positions",
    "eurobert": "rotary positions",
    "esm": "rotary or other positions",
    "fnet": "no attention to extend",
    "longformer": "a windowed attention of its own",
    "big_bird": "a windowed attention of its own",
}


FAMILIES = ("roberta", "xlm-roberta", "camembert", "bert", "albert", "electra", "distilbert")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model with learned absolute positions.

    `layers` are applied `layer_repeats` times. `head` maps hidden states to logits, `head_transform` is its first
    matrix. `position_offset` rows at the head of the position table are reserved and belong to no position.
    """

    family: str
    encoder: nn.Module
    embeddings: nn.Module
    layers: nn.Module
    layer_repeats: int
    head: Callable[[Tensor], Tensor]
    head_transform: nn.Linear
    position_offset: int

    @property
    def position_table(self) -> nn.Embedding:
        """The embedding of positions, reserved rows included."""
        return cast(nn.Embedding, self.embeddings.position_embeddings)

    @property
    def num_positions(self) -> int:
        """Positions that a text can use."""
        return self.position_table.num_embeddings - self.position_offset


def check_architecture(config: PretrainedConfig, name: str) -> None:
    """Raises ModelError, with the reason, for a model that is no encoder with a learned absolute table."""
    family = config.model_type
    if family in REFUSED:
        raise ModelError(f"{name} is a {family} model: it has {REFUSED[family]}, and no table of positions to stretch")
    if family not in FAMILIES:
        raise ModelError(
            f"{name} is a {family or 'nameless'} model: only {', '.join(FAMILIES[:-1])} and {FAMILIES[-1]} models can "
            "be stretched"
        )
    if getattr(config, "sinusoidal_pos_embds", False):
        raise ModelError(f"{name} has sinusoidal positions: only learned absolute ones can be stretched")
    if (kind := getattr(config, "position_embedding_type", None) or "absolute") != "absolute":
        raise ModelError(f"{name} has {kind} positions: only learned absolute ones can be stretched")
    if getattr(config, "is_decoder", False):
        raise ModelError(
            f"{name} is a decoder (is_decoder = true): its attention is causal, a masked language model's is not; take "
            "an encoder, or set it to false if the weights are one's"
        )


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Returns the parts of a masked language model; raises ModelError for one that cannot be stretched."""
    check_architecture(model.config, model.name_or_path or type(model).__name__)
    return _parts(model)


def _parts(model: Any) -> Architecture:
    config, encoder, offset, repeats = model.config, model.base_model, 0, 1
    layers: Any = None if config.model_type in ("albert", "distilbert") else encoder.encoder.layer
    head: Callable[[Tensor], Tensor]
    match config.model_type:
        case "roberta" | "xlm-roberta" | "camembert":
            head, transform, offset = model.lm_head, model.lm_head.dense, encoder.embeddings.padding_idx + 1
        case "bert":
            head, transform = model.cls, model.cls.predictions.transform.dense
        case "albert":
            head, transform, layers = model.predictions, model.predictions.dense, encoder.encoder.albert_layer_groups
            repeats = config.num_hidden_layers // config.num_hidden_groups
        case "electra":
            transform = model.generator_predictions.dense
            head = _in_turn(model.generator_predictions, model.generator_lm_head)
        case _:
            layers, transform = encoder.transformer.layer, model.vocab_transform
            head = _in_turn(transform, model.activation, model.vocab_layer_norm, model.vocab_projector)
    return Architecture(config.model_type, encoder, encoder.embeddings, layers, repeats, head, transform, offset)


def _in_turn(*modules: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda hidden: reduce(lambda value, module: module(value), modules, hidden)


@torch.no_grad()
def replace_positions(model: PreTrainedModel, table: Tensor) -> None:
    """Puts `table` (positions, width) in the place of the usable rows, and fits all that has the table's length.

    Reserved rows are carried over. The buffers that the embeddings slice or gather by position, and the model's
    config, follow.
    """
    parts = architecture_of(model)
    old = parts.position_table
    reserved = old.weight[: parts.position_offset]
    num_rows = len(table) + parts.position_offset
    new = nn.Embedding(num_rows, old.embedding_dim, padding_idx=old.padding_idx, device=old.weight.device)
    new.weight.copy_(torch.cat([reserved, table.to(old.weight)]))
    new.to(old.weight.dtype)
    embeddings = parts.embeddings
    embeddings.position_embeddings = new
    positions = torch.arange(num_rows, device=old.weight.device).unsqueeze(0)
    embeddings.register_buffer("position_ids", positions, persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        embeddings.register_buffer("token_type_ids", torch.zeros_like(positions), persistent=False)
    model.config.max_position_embeddings = num_rows
