"""Model families: which are supported, which can be extended, and how many positions a config gives.

`config` is a PretrainedConfig or the keys of a config.json as attributes. Imports no torch: inputs.py runs before it.
"""

from collections.abc import Collection
from typing import Any, Literal, assert_never, cast, get_args

from longmlm.errors import ModelError, PositionsError, counted

LearnedFamily = Literal["roberta", "xlm-roberta", "camembert", "bert", "albert", "electra", "distilbert"]
OtherFamily = Literal["modernbert", "deberta", "deberta-v2", "mpnet", "roformer", "nomic_bert", "eurobert"]
Family = Literal[LearnedFamily, OtherFamily]
ReleasedFamily = Literal["longformer"]  # which longmlm writes and measures, but neither extends nor trains further
LEARNED_FAMILIES: tuple[LearnedFamily, ...] = get_args(LearnedFamily)
FAMILIES: tuple[Family, ...] = get_args(Family)
COUNTED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert")  # positions start after the padding token's id
GATED = ("modernbert", "nomic_bert", "eurobert")  # families with a gated feed-forward layer, of two input matrices
HEADS: dict[str, tuple[str, ...]] = {  # by family, how the names of all weights of its MLM head begin
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), ("lm_head.",)),
    **dict.fromkeys(("bert", "roformer", "nomic_bert"), ("cls.",)),
    **dict.fromkeys(("deberta", "deberta-v2"), ("cls.", "lm_predictions.")),
    "albert": ("predictions.",),
    "electra": ("generator_predictions.", "generator_lm_head."),
    "distilbert": ("vocab_",),
    "modernbert": ("head.", "decoder."),
}  # eurobert's is a decoder alone, which may be the word embedding
NUM_LAYERS = ("num_hidden_layers", "n_layers")


def check_architecture(config: Any, name: str) -> None:
    """Raises ModelError, with the reason, unless the model is an encoder of a supported family."""
    family = config.model_type
    if family not in FAMILIES:
        supported = f"{', '.join(FAMILIES[:-1])} and {FAMILIES[-1]}"
        remedy = "; if longmlm released it, take the checkpoint of its run" if family == "longformer" else ""
        raise ModelError(f"{name} is a {family or 'nameless'} model: only {supported} models are supported{remedy}")
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if family in LEARNED_FAMILIES and kind != "absolute":
        raise ModelError(f"{name} has {kind} positions, which transformers no longer computes for a {family} model")
    if getattr(config, "is_decoder", False):
        raise ModelError(
            f"{name} is a decoder (is_decoder = true), whose attention is causal: take an encoder, or set is_decoder = "
            "false in its config.json if these are an encoder's weights"
        )


def has_head(config: Any, weight_names: Collection[str]) -> bool:
    """Returns whether some of these weights are of the family's MLM head; True if their names do not say."""
    beginnings = HEADS.get(config.model_type)
    return beginnings is None or any(name.startswith(beginnings) for name in weight_names)


def non_learned_positions(config: Any) -> str | None:
    """Returns the kind of positions of a model without a learned position table; None if it has such a table."""
    if config.model_type in LEARNED_FAMILIES:
        return "sinusoidal positions" if getattr(config, "sinusoidal_pos_embds", False) else None
    family = cast(OtherFamily, config.model_type)
    match family:
        case "deberta" | "deberta-v2" | "mpnet":
            return "relative positions"
        case "modernbert" | "roformer" | "nomic_bert" | "eurobert":
            return "rotary positions"
        case _:
            assert_never(family)


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
    num_rows, padding_idx = getattr(config, "max_position_embeddings", None), -1
    if config.model_type in COUNTED_FROM_PADDING:
        padding_idx = getattr(config, "pad_token_id", None)
    elif config.model_type == "mpnet":
        padding_idx = 1  # fixed in transformers' MPNet, whatever the config says
    return num_rows - padding_idx - 1 if isinstance(num_rows, int) and isinstance(padding_idx, int) else None


def num_parameters(config: Any, num_positions: int) -> int | None:
    """Returns about how many parameters a model of a supported family has, from 1 to 2 % too few.

    Only its matrices and the position table count. None if a key is missing.
    """
    width, layers = _first(config, "hidden_size", "dim"), _first(config, "num_hidden_groups", *NUM_LAYERS)
    inner, vocabulary = _first(config, "intermediate_size", "hidden_dim"), _first(config, "vocab_size")
    if width is None or layers is None or inner is None or vocabulary is None:
        return None
    num_embeddings = 2 if getattr(config, "tie_word_embeddings", True) is False else 1
    inner_matrices = 3 if config.model_type in GATED else 2
    words = num_embeddings * vocabulary * (_first(config, "embedding_size") or width)
    positions = num_positions * width if config.model_type in LEARNED_FAMILIES else 0
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
