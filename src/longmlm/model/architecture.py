"""The parts of a masked language model: the only module that knows where each family keeps its modules.

To add a family with learned absolute positions, add its `model_type` to Family and a case to `_parts` that names its
layers, its head's transform and matrix, its decoder and, if position 0 does not use row 0 of the table, the offset.
The tests of tests/model then need its tiny tokenizer and config in tests/support/tiny.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, assert_never, cast, get_args

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from longmlm.errors import ModelError

Family = Literal["roberta", "xlm-roberta", "camembert", "bert", "albert", "electra", "distilbert"]
FAMILIES: tuple[Family, ...] = get_args(Family)
REFUSED = {
    **dict.fromkeys(("deberta", "deberta-v2", "mpnet", "t5", "xlnet", "nezha"), "relative positions"),
    **dict.fromkeys(("roformer", "modernbert", "nomic_bert", "eurobert"), "rotary positions"),
    **dict.fromkeys(("longformer", "big_bird"), "its own windowed attention"),
    "esm": "rotary or other positions",
    "fnet": "no attention to extend",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model with learned absolute positions.

    `layers` are applied `layer_repeats` times. `decoder(head_transform(hidden))` are the logits; `head_matrix` is the
    first linear layer of the transform. The first `position_offset` rows of the position table are reserved: no
    position uses them.
    """

    family: Family
    encoder: nn.Module
    embeddings: nn.Module
    layers: nn.Module
    layer_repeats: int
    head_transform: Callable[[Tensor], Tensor]
    head_matrix: nn.Linear
    decoder: nn.Linear
    position_offset: int

    @property
    def position_table(self) -> nn.Embedding:
        """The embedding of positions, reserved rows included."""
        return cast(nn.Embedding, self.embeddings.position_embeddings)

    @property
    def usable_rows(self) -> Tensor:
        """The rows of the position table that positions use, without their gradient."""
        return self.position_table.weight.detach()[self.position_offset :]

    @property
    def num_positions(self) -> int:
        """Number of positions that a text can use."""
        return self.position_table.num_embeddings - self.position_offset


def check_architecture(config: PretrainedConfig, name: str) -> None:
    """Raises ModelError, with the reason, unless the model is an encoder with learned absolute positions."""
    family = config.model_type
    if family in REFUSED:
        raise ModelError(f"{name} is a {family} model: it has {REFUSED[family]} and no position table to extend")
    if family not in FAMILIES:
        raise ModelError(
            f"{name} is a {family or 'nameless'} model: only {', '.join(FAMILIES[:-1])} and {FAMILIES[-1]} models can "
            "be extended"
        )
    if getattr(config, "sinusoidal_pos_embds", False):
        raise ModelError(f"{name} has sinusoidal positions: only learned absolute positions can be extended")
    if (kind := getattr(config, "position_embedding_type", None) or "absolute") != "absolute":
        raise ModelError(f"{name} has {kind} positions: only learned absolute positions can be extended")
    if getattr(config, "is_decoder", False):
        raise ModelError(
            f"{name} is a decoder (is_decoder = true), whose attention is causal: take an encoder, or set is_decoder = "
            "false in its config.json if these are an encoder's weights"
        )


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Returns the parts of a masked language model; raises ModelError for a model that cannot be extended."""
    check_architecture(model.config, model.name_or_path or type(model).__name__)
    return _parts(model, cast(Family, model.config.model_type))


def _parts(model: Any, family: Family) -> Architecture:  # Any: each family has attributes of its own
    encoder, offset, repeats = model.base_model, 0, 1
    layers: Any = None if family in ("albert", "distilbert") else encoder.encoder.layer
    match family:
        case "roberta" | "xlm-roberta" | "camembert":
            head, offset = model.lm_head, encoder.embeddings.padding_idx + 1
            matrix, decoder = head.dense, head.decoder
            transform = nn.Sequential(matrix, nn.GELU(), head.layer_norm)
        case "bert":
            transform, decoder = model.cls.predictions.transform, model.cls.predictions.decoder
            matrix = transform.dense
        case "albert":
            head, layers = model.predictions, encoder.encoder.albert_layer_groups
            matrix, decoder = head.dense, head.decoder
            transform = nn.Sequential(matrix, head.activation, head.LayerNorm)
            repeats = model.config.num_hidden_layers // model.config.num_hidden_groups
        case "electra":
            transform, decoder = model.generator_predictions, model.generator_lm_head
            matrix = transform.dense
        case "distilbert":
            layers, matrix, decoder = encoder.transformer.layer, model.vocab_transform, model.vocab_projector
            transform = nn.Sequential(matrix, model.activation, model.vocab_layer_norm)
        case _:
            assert_never(family)
    return Architecture(family, encoder, encoder.embeddings, layers, repeats, transform, matrix, decoder, offset)


@torch.no_grad()
def replace_positions(model: PreTrainedModel, table: Tensor) -> None:
    """Replaces the usable rows of the position table by `table` (positions, width); reserved rows are kept.

    The embeddings' buffers that are as long as the table, and the model's config, follow.
    """
    parts = architecture_of(model)
    old, embeddings = parts.position_table, parts.embeddings
    reserved = old.weight[: parts.position_offset]
    num_rows = len(table) + parts.position_offset
    new = nn.Embedding(num_rows, old.embedding_dim, padding_idx=old.padding_idx, device=old.weight.device)
    new.weight.copy_(torch.cat([reserved, table.to(old.weight)]))
    embeddings.position_embeddings = new.to(old.weight.dtype)
    positions = torch.arange(num_rows, device=old.weight.device).unsqueeze(0)
    embeddings.register_buffer("position_ids", positions, persistent=False)
    if hasattr(embeddings, "token_type_ids"):
        embeddings.register_buffer("token_type_ids", torch.zeros_like(positions), persistent=False)
    model.config.max_position_embeddings = num_rows
