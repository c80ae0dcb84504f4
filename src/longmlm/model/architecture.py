"""The parts of a masked language model: the only module that knows where each family keeps its modules.

To add a family, add its `model_type` in families.py: to LearnedFamily if it has a learned position table, otherwise to
OtherFamily. Add a case to `parts_of` here. Then describe a tiny tokenizer and config of the family for
the tests (tests/support/families.py in a clone): all tests of models run on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.families import Family, LearnedFamily, ReleasedFamily, check_architecture

NUM_GLOBAL = "num_global_tokens"  # a key of our own in the config.json of a released Longformer


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a masked language model.

    `head` maps hidden states to logits. `head_matrix` is the dense layer of its transform, if it has one;
    `decoder_weight` (vocabulary, width) and `decoder_bias` are its last layer, whose weight is often tied to the word
    embedding. ALBERT applies each of its `layers` several times. The first `position_offset` positions are reserved;
    `num_positions` counts the others, up to max_position_embeddings of the config.
    """

    encoder: nn.Module
    layers: nn.ModuleList
    head: Callable[[Tensor], Tensor]
    head_matrix: nn.Linear | None
    decoder_weight: nn.Parameter
    decoder_bias: nn.Parameter | None
    position_offset: int
    num_positions: int


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
    encoder, decoder, offset = model.base_model, model.get_output_embeddings(), position_offset(model.base_model)
    weight, bias = decoder.weight, decoder.bias
    match family := cast(Family | ReleasedFamily, model.config.model_type):
        case "roberta" | "xlm-roberta" | "camembert" | "mpnet" | "longformer":
            layers, head, matrix = encoder.encoder.layer, model.lm_head, model.lm_head.dense
        case "bert" | "roformer":
            layers, head, matrix = encoder.encoder.layer, model.cls, model.cls.predictions.transform.dense
        case "deberta" | "deberta-v2":
            layers = encoder.encoder.layer
            head, matrix, weight, bias = _deberta_head(model)
        case "nomic_bert":
            layers, head, matrix = encoder.layers, model.cls, model.cls.predictions.transform.dense
        case "modernbert":
            layers, head, matrix = encoder.layers, nn.Sequential(model.head, decoder), model.head.dense
        case "eurobert":
            layers, head, matrix = encoder.layers, decoder, None
        case "albert":
            layers, head, matrix = encoder.encoder.albert_layer_groups, model.predictions, model.predictions.dense
        case "electra":
            layers, transform = encoder.encoder.layer, model.generator_predictions
            head, matrix = nn.Sequential(transform, decoder), transform.dense
        case "distilbert":
            layers, matrix = encoder.transformer.layer, model.vocab_transform
            head = nn.Sequential(matrix, model.activation, model.vocab_layer_norm, decoder)
        case _:
            assert_never(family)
    num_positions = model.config.max_position_embeddings - offset
    return Architecture(encoder, layers, head, matrix, weight, bias, offset, num_positions)


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


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What a position embedding passes before attention: LayerNorm, a projection if there is one, and query and key.

    `attentions` are the query and key of each layer with weights of its own.
    """

    norm: nn.LayerNorm
    projection: nn.Linear | None
    attentions: tuple[tuple[nn.Linear, nn.Linear], ...]
    num_heads: int


def attention_inputs(model: PreTrainedModel) -> AttentionInputs:
    """Returns the modules between the position table and attention of a model with a learned table."""
    encoder, projection = cast(Any, model.base_model), None
    match family := cast(LearnedFamily, model.config.model_type):
        case "roberta" | "xlm-roberta" | "camembert" | "bert":
            attentions = [layer.attention.self for layer in encoder.encoder.layer]
        case "electra":
            attentions = [layer.attention.self for layer in encoder.encoder.layer]
            projection = getattr(encoder, "embeddings_project", None)
        case "albert":
            groups = encoder.encoder.albert_layer_groups
            attentions = [layer.attention for group in groups for layer in group.albert_layers]
            projection = encoder.encoder.embedding_hidden_mapping_in
        case "distilbert":
            attentions = [layer.attention for layer in encoder.transformer.layer]
        case _:
            assert_never(family)
    names = ("q_lin", "k_lin") if family == "distilbert" else ("query", "key")
    pairs = tuple((getattr(attention, names[0]), getattr(attention, names[1])) for attention in attentions)
    return AttentionInputs(encoder.embeddings.LayerNorm, projection, pairs, model.config.num_attention_heads)


def _deberta_head(model: Any) -> tuple[Callable[[Tensor], Tensor], nn.Linear, nn.Parameter, nn.Parameter]:
    """Returns DeBERTa's head; with legacy = false in the config, it decodes with the word embedding and a bias."""
    if model.legacy:
        head = model.cls.predictions
        return model.cls, head.transform.dense, head.decoder.weight, head.decoder.bias
    words, head = model.get_input_embeddings(), model.lm_predictions.lm_head
    return partial(model.lm_predictions, word_embeddings=words), head.dense, words.weight, head.bias


ATTRIBUTES = ("dropout", "attention_dropout")  # of attention over chunks, Longformer, XLM; of ModernBERT, NomicBERT


def dropout_of(model: nn.Module) -> float:
    """Returns the highest probability of dropout, attention included; 0 without dropout."""
    return max((float(getattr(module, name)) for module, name in _places(model)), default=0.0)


def set_dropout(model: nn.Module, probability: float) -> None:
    """Sets every dropout of the model, attention included, and leaves the model's config as it is."""
    for module, name in _places(model):
        setattr(module, name, probability)
        if isinstance(getattr(module, "out_drop", None), nn.Identity):  # ModernBERT's, if its config has none
            module.out_drop = nn.Dropout(probability)


def _places(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Yields each module with dropout, and the name of its attribute that has the probability."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            yield module, "p"
        elif not isinstance(module, nn.RNNBase):  # which here have one layer, and dropout between layers only
            name = next((name for name in ATTRIBUTES if isinstance(getattr(module, name, None), int | float)), None)
            if name:
                yield module, name
