"""Model families: which are supported, how they are built, which can be extended, and to what length.

`config` is a PretrainedConfig or the keys of a config.json as attributes. Imports no torch.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal

from longmlm.artifacts.provenance import Extension, ModelSource, Provenance
from longmlm.errors import ModelError, PositionsError, counted
from longmlm.settings.extend import USED_BY, ExtendRecipe
from longmlm.settings.pretrain import PretrainRecipe


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between the families of transformers.

    `head` names the modules that compute logits from hidden states, one after the other, and `matrix` the dense layer
    among them. The first `num_reserved` positions are for padding: in some families one more than pad_token_id of the
    config. The feed-forward layer of a gated family has two input matrices. `pair_head` names the module that
    predicts from the pooled first token whether two segments follow each other.
    """

    positions: Literal["learned", "relative", "rotary"]
    head: tuple[str, ...]
    matrix: str | None
    num_reserved: int | Literal["pad_token_id + 1"] = 0
    is_gated: bool = False
    pair_head: str | None = None


ROBERTA = Family("learned", ("lm_head",), "lm_head.dense", "pad_token_id + 1")
BERT_HEAD = (("cls.predictions",), "cls.predictions.transform.dense")
DISTILBERT_HEAD = ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector")
COUNTED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert")
FAMILIES = {
    **dict.fromkeys(COUNTED_FROM_PADDING, ROBERTA),
    "bert": Family("learned", *BERT_HEAD, pair_head="cls.seq_relationship"),
    "albert": Family("learned", ("predictions",), "predictions.dense", pair_head="sop_classifier"),
    "electra": Family("learned", ("generator_predictions", "generator_lm_head"), "generator_predictions.dense"),
    "distilbert": Family("learned", DISTILBERT_HEAD, "vocab_transform"),
    "modernbert": Family("rotary", ("head", "decoder"), "head.dense", is_gated=True),
    **dict.fromkeys(("deberta", "deberta-v2"), Family("relative", *BERT_HEAD)),  # or NEW_DEBERTA_HEAD
    "mpnet": Family("relative", ("lm_head",), "lm_head.dense", 2),  # whatever the padding token of its config
    "roformer": Family("rotary", *BERT_HEAD),
    "nomic_bert": Family("rotary", *BERT_HEAD, is_gated=True),
    "eurobert": Family("rotary", ("lm_head",), None, is_gated=True),
}
SHARED_LAYERS = ("albert",)
LEARNED_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.positions == "learned")
RELEASED_FAMILIES = {"longformer": ROBERTA}  # which longmlm writes and measures, but neither extends nor trains
LONGFORMER_FAMILIES = ("roberta", "xlm-roberta", "camembert", "bert")  # whose layers Longformer has
NEW_DEBERTA_HEAD = "lm_predictions"  # the head's name with legacy = false in the config
NUM_LAYERS = ("num_hidden_layers", "n_layers")
MANY_POSITIONS, MANY_TIMES = 4096, 8  # MiniLM, extended from 512 to 4096 positions, kept 22.5 of 42.1 %
POSITION_SETTINGS = ("mode", "attention_window", *USED_BY, "initialisation")  # a pipeline derives the last one


def check_architecture(config: Any, name: str) -> None:
    """Raises ModelError, with the reason, unless the model is an encoder of a supported family."""
    family = config.model_type
    if family not in FAMILIES:
        *others, last = FAMILIES
        supported = f"{', '.join(others)} and {last}"
        remedy = "; if longmlm released it, take the checkpoint of its run" if family in RELEASED_FAMILIES else ""
        raise ModelError(f"{name} is a {family or 'nameless'} model: only {supported} models are supported{remedy}")
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if family in LEARNED_FAMILIES and kind != "absolute":
        raise ModelError(f"{name} has {kind} positions, which transformers no longer computes for a {family} model")
    if getattr(config, "is_decoder", False):
        raise ModelError(
            f"{name} is a decoder (is_decoder = true), whose attention is causal: take an encoder, or set is_decoder = "
            "false in its config.json if these are an encoder's weights"
        )


def check_can_learn(recipe: PretrainRecipe, config: Any, name: str, extension: Extension | None) -> None:
    """Raises ModelError for a model that can't isolate documents, or read pairs, if the recipe needs it to."""
    if recipe.isolate_documents:
        check_can_isolate(config, name)
    if recipe.pairs:
        check_reads_pairs(config, name, extension)


def check_can_isolate(config: Any, name: str) -> None:
    """Raises ModelError for a model in which tokens see their neighbours by other means than attention."""
    if config.model_type == "deberta-v2" and getattr(config, "conv_kernel_size", 0):
        raise ModelError(
            f"{name} mixes neighbouring tokens in a convolution (conv_kernel_size = {config.conv_kernel_size} in its "
            "config.json), which does not stop at documents: remove recipe.isolate_documents"
        )


def has_head(config: Any, weight_names: Collection[str]) -> bool:
    """Returns whether some of these weights are of the family's MLM head; True if their names do not say.

    EuroBERT's head is a decoder alone, which may be the word embedding.
    """
    family = FAMILIES.get(config.model_type)
    if family is None or family.matrix is None:
        return True
    beginnings = tuple(f"{part}." for part in (*family.head, NEW_DEBERTA_HEAD))
    return any(name.startswith(beginnings) for name in weight_names)


def check_reads_pairs(config: Any, name: str, extension: Extension | None = None) -> None:
    """Raises ModelError, with the reason, for a model of a supported family that cannot learn pairs of segments."""
    remedy = "remove [recipe.pairs] (in a pipeline, [pretrain.recipe.pairs])"
    if FAMILIES[config.model_type].pair_head is None:
        able = " and ".join(family for family, about in FAMILIES.items() if about.pair_head)
        raise ModelError(
            f"{name} is a {config.model_type} model, which has no head for pairs; only {able} models do: {remedy}"
        )
    if getattr(config, "type_vocab_size", 2) < 2:  # noqa: PLR2004 - one for each segment
        raise ModelError(f"{name} has a single token type (type_vocab_size = 1), and pairs need two: {remedy}")
    if extension and extension.attention_window is not None:
        raise ModelError(
            f"{name} has a window, so it is released as a Longformer, which has no head for pairs: extend it without "
            f"attention_window, or {remedy}"
        )


def longformer_problem(config: Any, has_mlm_head: bool = True) -> str | None:
    """Returns why Longformer cannot compute what models with this config do; None if it can."""
    if config.model_type not in LONGFORMER_FAMILIES:
        return f"Longformer has no {config.model_type} layers, only those of {', '.join(LONGFORMER_FAMILIES)}"
    activation = getattr(config, "hidden_act", "gelu")
    if has_mlm_head and config.model_type == "bert" and activation != "gelu":
        return f"Longformer's MLM head uses gelu, this model's uses {activation}"
    if getattr(config, "pad_token_id", 0) is None:  # families have one by default
        return "Longformer counts positions from the padding token, and the config has no pad_token_id"
    return None


def non_learned_positions(config: Any) -> str | None:
    """Returns the kind of positions of a model without a learned position table; None if it has such a table."""
    kind = FAMILIES[config.model_type].positions
    if kind != "learned":
        return f"{kind} positions"
    return "sinusoidal positions" if getattr(config, "sinusoidal_pos_embds", False) else None


def check_has_position_table(config: Any, num_positions: int, name: str) -> None:
    """Raises ModelError, with the reason, for a model of a supported family without a learned position table."""
    if reason := non_learned_positions(config):
        raise ModelError(
            f"{name} is a {config.model_type} model, which cannot be extended: it has {reason}; pretrain it at its own "
            f"length, {counted(num_positions, 'token')}"
        )


def num_usable_positions(config: Any) -> int | None:
    """Returns how many positions a model of a supported family has, without reserved ones; None if a key is missing.

    It equals `num_positions` of `parts_of(model)`, which reads the reserved positions from the loaded model.
    """
    num_rows, family = getattr(config, "max_position_embeddings", None), FAMILIES.get(config.model_type)
    num_reserved = family.num_reserved if family else 0
    padding = num_reserved - 1 if isinstance(num_reserved, int) else getattr(config, "pad_token_id", None)
    return num_rows - padding - 1 if isinstance(num_rows, int) and isinstance(padding, int) else None


def num_parameters(config: Any, num_positions: int) -> int | None:
    """Returns about how many parameters a model of a supported family has, from 1 to 2 % too few.

    Only its matrices and the position table count. None if a key is missing.
    """
    width, layers = _first(config, "hidden_size", "dim"), _first(config, "num_hidden_groups", *NUM_LAYERS)
    inner, vocabulary = _first(config, "intermediate_size", "hidden_dim"), _first(config, "vocab_size")
    family = FAMILIES.get(config.model_type)
    if family is None or width is None or layers is None or inner is None or vocabulary is None:
        return None
    num_embeddings = 2 if getattr(config, "tie_word_embeddings", True) is False else 1
    inner_matrices = 3 if family.is_gated else 2
    words = num_embeddings * vocabulary * (_first(config, "embedding_size") or width)
    positions = num_positions * width if family.positions == "learned" else 0
    return words + positions + layers * (4 * width**2 + inner_matrices * width * inner)


def _first(config: Any, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def check_num_positions(n: int, num_positions: int) -> None:
    """Raises PositionsError unless n < num_positions <= n * n."""
    if num_positions <= n:
        raise PositionsError(
            f"num_positions = {num_positions}: the model already has {n} positions; set more (in a pipeline, length)"
        )
    if num_positions > n**2:
        raise PositionsError(
            f"num_positions = {num_positions}: {n} trained positions extend to {n**2} at most; set fewer (in a "
            "pipeline, length)"
        )


def planned_extension(
    recipe: ExtendRecipe, base: ModelSource, provenance: Provenance, config: Any, base_positions: int
) -> Extension | None:
    """Returns the extension of a base model with this provenance and config; None if it keeps its positions.

    Raises PositionsError for a number of positions or a window that the model does not allow, for settings of new
    positions if there are none, or if the base model was itself extended and not trained since; ModelError for a model
    that cannot be extended.
    """
    check_extendable(provenance, base.name)
    defaults = {item.name: item.default for item in fields(recipe)}
    extension = None if recipe.keeps_positions(base_positions) else Extension.of(recipe, base, base_positions)
    for name in POSITION_SETTINGS if extension is None else ():
        if getattr(recipe, name) != defaults[name]:
            raise PositionsError(f"{name} is for new positions, but the model keeps its {base_positions}: remove it")
    check_keeps_window(provenance, extension, base.name)
    if extension is not None:
        check_has_position_table(config, base_positions, base.name)
        check_num_positions(base_positions, extension.num_positions)
        if extension.local_layers is not None:
            check_local_layers(extension.local_layers, config)
        if extension.initialisation == "distilled":
            if shares_layers(config):
                raise ModelError(
                    "initialisation = distilled (the default in a pipeline) trains only the lowest layers, which is "
                    "impossible for ALBERT because its layers share weights: set initialisation to fitted"
                )
            check_local_layers(extension.distillation.layers or 1, config, "distillation.layers")
    return extension


def shares_layers(config: Any) -> bool:
    """Returns whether all layers have the same weights, so that the lowest cannot be trained alone."""
    return config.model_type in SHARED_LAYERS


def check_local_layers(number: int, config: Any, setting: str = "local_layers") -> None:
    """Raises ModelError unless the model has at least `number` layers, and does not share weights between them."""
    num_layers = _first(config, *NUM_LAYERS)
    if num_layers is not None and number > num_layers:
        raise ModelError(f"{setting} = {number}, but the model has {counted(num_layers, 'layer')}: set fewer")
    if shares_layers(config):
        raise ModelError(f"{setting} needs layers that do not share weights, and ALBERT's do: remove it")


def attention_note(recipe: ExtendRecipe, base_positions: int, config: Any) -> str:
    """Returns which attention or initialisation keeps more accuracy; nothing if the choice is sound or there is none.

    Within n / 2 tokens on each side, no two tokens have the same offset in a block, so tiled positions never repeat.
    """
    window, widest = recipe.attention_window, base_positions // 2
    where, is_tile = f"within {window} tokens on each side", recipe.initialisation == "tile"
    if window is None:
        num_positions = recipe.num_positions or 0
        if num_positions < max(MANY_POSITIONS, MANY_TIMES * base_positions) or longformer_problem(config):
            return ""
        return (
            f"full attention over {num_positions} positions, {num_positions // base_positions} times as many as were "
            "trained: with 8 times as many fitted positions, MiniLM kept half of its accuracy. attention_window = "
            f"{widest} with initialisation = tile keeps almost all, and makes a Longformer (documentation: The method)"
        )
    if is_tile and window > widest:
        remedy = f"attention_window = {widest} keeps more accuracy"
        return f"tiled positions repeat {where}: {remedy}; where the window is wide, so may initialisation = fitted"
    if not is_tile and window <= widest:
        return f"{where}, initialisation = tile keeps more accuracy than {recipe.initialisation}"
    return ""


def check_extendable(provenance: Provenance, name: str) -> None:
    """Raises PositionsError for a long model that was not trained at its length: its new rows are untrained."""
    extension, trained = provenance.extension, provenance.trained
    if extension is None or (trained and trained.steps and trained.row_length == extension.num_positions):
        return
    raise PositionsError(
        f"{name} was extended to {extension.num_positions} positions and has not been trained at that length: extend "
        f"{extension.base.name} to the length you want, or pretrain this model first"
    )


def check_keeps_window(base: Provenance, extension: Extension | None, name: str) -> None:
    """Raises PositionsError if the base model attends within a window and the extension sets none."""
    before = base.extension
    if before and before.attention and (extension is None or extension.attention is None):
        raise PositionsError(
            f"{name} was trained with a window of {before.attention}: set num_positions and attention_window; "
            "a window as large as num_positions is full attention"
        )
