"""The parts of a masked language model, by the names that its family gives them, and its dropout.

To add a family, add it to FAMILIES in families.py, and describe a tiny tokenizer and config for the tests
(tests/support/families.py in a clone): all tests of models run on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.families import FAMILIES, NEW_DEBERTA_HEAD, RELEASED_FAMILIES, check_architecture

NUM_GLOBAL = "num_global_tokens"  # a key of our own in the config.json of a released Longformer


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model.

    `head` maps hidden states to logits. `head_matrix` is the dense layer of its transform, if it has one;
    `decoder_weight` (vocabulary, width) and `decoder_bias` are its last layer, whose weight is often tied to the word
    embedding. ALBERT applies each of its `layers` several times. The first `position_offset` positions are reserved;
    `num_positions` counts the others, up to max_position_embeddings of the config. `pair_head` is that of a model for
    pairs of segments, such as BertForPreTraining, which also has a pooler.
    """

    encoder: nn.Module
    layers: nn.ModuleList
    head: Callable[[Tensor], Tensor]
    head_matrix: nn.Linear | None
    decoder_weight: nn.Parameter
    decoder_bias: nn.Parameter | None
    position_offset: int
    num_positions: int
    pair_head: nn.Module | None = None

    def pair_logits(self, first: Tensor) -> Tensor:
        """Returns the logits (rows, 2) of the pair head from the hidden states (rows, width) of first tokens."""
        assert self.pair_head is not None
        encoder = cast(Any, self.encoder)
        if hasattr(encoder, "pooler_activation"):  # ALBERT's
            return self.pair_head(encoder.pooler_activation(encoder.pooler(first)))
        return self.pair_head(encoder.pooler(first.unsqueeze(1)))


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Returns the parts of a masked language model; raises ModelError for a model that is not supported."""
    check_architecture(model.config, model.name_or_path or type(model).__name__)
    return parts_of(model)


def position_offset(encoder: PreTrainedModel) -> int:
    """Returns the number of reserved positions of any encoder in transformers, which come first.

    In RoBERTa and models like it, positions start after the padding token's id. In XLM, `embeddings` is the word
    embedding, whose padding says nothing about positions.
    """
    embeddings = getattr(encoder, "embeddings", None)
    padding = None if isinstance(embeddings, nn.Embedding) else getattr(embeddings, "padding_idx", None)
    return 0 if padding is None else padding + 1


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """Returns the layers of any encoder in transformers; ALBERT applies each of its own several times."""
    return max((part for part in encoder.modules() if isinstance(part, nn.ModuleList)), key=len)


def parts_of(model: Any) -> Architecture:  # Any: each family has attributes of its own
    """Returns the parts of a masked language model that was checked before, or that longmlm released."""
    encoder, decoder = model.base_model, model.get_output_embeddings()
    weight, bias, offset = decoder.weight, decoder.bias, position_offset(encoder)
    head: Callable[[Tensor], Tensor]
    pair_head = None
    if hasattr(model, NEW_DEBERTA_HEAD):  # it decodes with the word embedding and a bias of its own
        words, last = model.get_input_embeddings(), model.lm_predictions.lm_head
        head, matrix = partial(model.lm_predictions, word_embeddings=words), last.dense
        weight, bias = words.weight, last.bias
    else:
        family = (FAMILIES | RELEASED_FAMILIES)[model.config.model_type]
        modules = [model.get_submodule(name) for name in family.head]
        head = nn.Sequential(*modules) if len(modules) > 1 else modules[0]
        matrix = model.get_submodule(family.matrix) if family.matrix else None
        pair_head = dict(model.named_modules()).get(family.pair_head)
    num_positions = model.config.max_position_embeddings - offset
    return Architecture(encoder, layers_of(encoder), head, matrix, weight, bias, offset, num_positions, pair_head)


def unused_bias(model: PreTrainedModel) -> tuple[str, str] | None:
    """Returns the names of the decoder's bias, and of a second one that the head does not add.

    Heads like BERT's and RoBERTa's register their bias twice, in the decoder and beside it. transformers 5 makes them
    one parameter only if the decoder is tied to the word embedding. Returns None if there is no second one.
    """
    if model.get_output_embeddings() is None:  # a model for a labelled task
        return None
    bias, parameters = parts_of(model).decoder_bias, dict(model.named_parameters(remove_duplicate=False))
    for name in [name for name, parameter in parameters.items() if parameter is bias]:
        head, _, last = name.removesuffix(".bias").rpartition(".")
        second = f"{head}.bias" if last else name
        if second in parameters and parameters[second] is not bias:
            return name, second
    return None


def without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Returns the encoder without its pooler, if it has one."""
    if getattr(encoder, "pooler", None) is not None:
        cast(Any, encoder).pooler = None
    return encoder


ATTRIBUTES = ("p", "dropout", "attention_dropout")  # in Dropout modules; in the attention of Longformer, XLM and others


def dropout_of(model: nn.Module) -> float:
    """Returns the highest probability of dropout, attention included; 0 without dropout."""
    return max((float(getattr(module, name)) for module, name in _dropouts(model)), default=0.0)


def set_dropout(model: nn.Module, probability: float) -> None:
    """Sets every dropout of the model, attention included, and leaves the model's config as it is."""
    for module, name in list(_dropouts(model)):
        setattr(module, name, probability)
        if isinstance(getattr(module, "out_drop", None), nn.Identity):  # ModernBERT's, if its config has none
            cast(Any, module).out_drop = nn.Dropout(probability)


def _dropouts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yields each module with dropout, and the name of its attribute that has the probability."""
    for module in model.modules():
        is_recurrent = isinstance(module, nn.RNNBase)  # which here have one layer, and dropout between layers only
        numbers = (name for name in ATTRIBUTES if isinstance(getattr(module, name, None), int | float))
        if (name := next(numbers, None)) and not is_recurrent:
            yield module, name
