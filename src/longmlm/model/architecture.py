"""The parts of a masked language model: the only module that knows where each family keeps its modules.

To add a family with learned absolute positions, add its `model_type` to Family and a case to `_parts`: its layers, its
head's transform and decoder and, if position 0 does not use row 0 of the position table, the offset. Then describe a
tiny tokenizer and config of the family in tests/support/tiny.py, and all tests of tests/model run on it.
"""

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
    "fnet": "no attention",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model with learned absolute positions.

    `decoder(head_transform(hidden))` are the logits. ALBERT applies each of its `layers` several times. The first
    `position_offset` rows of the position table are reserved: no position uses them.
    """

    encoder: nn.Module
    layers: nn.ModuleList
    head_transform: nn.Module
    decoder: nn.Linear
    position_offset: int

    @property
    def head_matrix(self) -> nn.Linear:
        """The only linear layer of the head's transform."""
        return next(part for part in self.head_transform.modules() if isinstance(part, nn.Linear))

    @property
    def embeddings(self) -> nn.Module:
        """The embeddings of tokens and positions."""
        return cast(nn.Module, self.encoder.embeddings)

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
        """Number of usable positions."""
        return self.position_table.num_embeddings - self.position_offset


def check_architecture(config: PretrainedConfig, name: str) -> None:
    """Raises ModelError, with the reason, unless the model is an encoder with learned absolute positions."""
    family = config.model_type
    if family in REFUSED:
        raise ModelError(f"{name} is a {family} model, which cannot be extended: it has {REFUSED[family]}")
    if family not in FAMILIES:
        raise ModelError(
            f"{name} is a {family or 'nameless'} model: only {', '.join(FAMILIES[:-1])} and {FAMILIES[-1]} models can "
            "be extended"
        )
    is_sinusoidal = getattr(config, "sinusoidal_pos_embds", False)
    kind = "sinusoidal" if is_sinusoidal else getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
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
    encoder, offset = model.base_model, 0
    match family:
        case "roberta" | "xlm-roberta" | "camembert":
            head, layers, offset = model.lm_head, encoder.encoder.layer, encoder.embeddings.padding_idx + 1
            transform, decoder = nn.Sequential(head.dense, nn.GELU(), head.layer_norm), head.decoder
        case "bert":
            head, layers = model.cls.predictions, encoder.encoder.layer
            transform, decoder = head.transform, head.decoder
        case "albert":
            head, layers = model.predictions, encoder.encoder.albert_layer_groups
            transform, decoder = nn.Sequential(head.dense, head.activation, head.LayerNorm), head.decoder
        case "electra":
            layers = encoder.encoder.layer
            transform, decoder = model.generator_predictions, model.generator_lm_head
        case "distilbert":
            layers, decoder = encoder.transformer.layer, model.vocab_projector
            transform = nn.Sequential(model.vocab_transform, model.activation, model.vocab_layer_norm)
        case _:
            assert_never(family)
    return Architecture(encoder, layers, transform, decoder, offset)


@torch.no_grad()
def replace_positions(model: PreTrainedModel, table: Tensor) -> None:
    """Replaces the usable rows of the position table with `table` (positions, width); reserved rows are kept.

    The buffers that are as long as the table are resized, and config.max_position_embeddings is set.
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
