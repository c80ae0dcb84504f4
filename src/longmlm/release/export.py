"""Export of a trained model as a stock transformers folder; one with a window becomes a Longformer."""

from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, LongformerConfig, PreTrainedModel

from longmlm.hubs.model_files import SENTENCE_FILES, TEMPLATES
from longmlm.model.architecture import NUM_GLOBAL, architecture_of, position_offset, without_pooler
from longmlm.model.carried import Carried, save_model
from longmlm.model.checks import REBUILT_BUFFERS
from longmlm.model.heads import pair_parameters
from longmlm.model.loading import LoadedModel, class_for
from longmlm.model.window import Window
from longmlm.pipeline_needs import check_longformer, check_window_files
from longmlm.settings.release import ReleaseRecipe, WeightType

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BERT_HEADS = {  # names of BERT's heads in Longformer, by class
    "BertForMaskedLM": {
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
        "cls.predictions.decoder": "lm_head.decoder",
        "cls.predictions.bias": "lm_head.bias",
    },
    "BertForSequenceClassification": {
        "bert.pooler.dense": "classifier.dense",
        "classifier": "classifier.out_proj",
    },
}
COPIED = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size", "initializer_range"),
    *("layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
    *("id2label", "label2id", "problem_type"),
)


def export(
    trained: LoadedModel,
    weights: WeightType,
    folder: Path,
    max_shard_size: str | None = None,
    auto_class: Any = AutoModelForMaskedLM,
) -> None:
    """Writes a stock model with the trained weights, in files of at most `max_shard_size`, and the tokenizer.

    A model with a window becomes a Longformer. The trained model itself stays as it is; a masked language model keeps a
    trained pair head, and its tokenizer gets its length. Raises ReleaseError if Longformer cannot compute what the
    model does.
    """
    is_mlm = auto_class is AutoModelForMaskedLM
    if window := longformer_window(trained):
        stock: Any = as_longformer(trained.model, window, auto_class)
    else:
        stock = (class_for(pair_parameters(trained.model)) if is_mlm else auto_class).from_config(trained.model.config)
        stock.load_state_dict(trained.model.state_dict(), strict=True)
        stock.tie_weights()
    stock.to(TYPES[weights])
    stock.config.dtype = TYPES[weights]
    if is_mlm:
        trained.tokenizer.model_max_length = architecture_of(trained.model).num_positions
    save_model(stock, trained.tokenizer, carried_by(trained, weights), folder, max_shard_size=max_shard_size)


def longformer_window(trained: LoadedModel) -> Window | None:
    """Returns the window of a model that is exported as a Longformer; None for full attention, or for a Longformer."""
    window, model = Window.of(trained.provenance.extension), trained.model
    if window is None or model.config.model_type == LongformerConfig.model_type:
        return None
    return None if window.covers(_num_positions(model)) else window


def check_exportable(trained: LoadedModel, recipe: ReleaseRecipe) -> None:
    """Raises ReleaseError for files that cannot be written for a model with a window."""
    if window := longformer_window(trained):
        check_window_files(window.num_global, recipe)


def carried_by(trained: LoadedModel, weights: WeightType = "fp32") -> Carried:
    """Returns what the exported model carries over in the stored type, under Longformer's names if it becomes one.

    Modules of sentence-transformers are left out if there are global tokens, which that library cannot pass.
    """
    carried, window = trained.carried, longformer_window(trained)
    stored = {
        name: value.to(TYPES[weights]) if value.is_floating_point() else value
        for name, value in carried.weights.items()
    }
    if window is None:
        return replace(carried, weights=stored)
    stored = {longformer_name(name, trained.model): value for name, value in stored.items()}
    modules = [name for name in carried.files if window.num_global and is_sentence_file(name)]
    files = {name: content for name, content in carried.files.items() if name not in modules}
    return replace(carried, weights=stored, files=files, left_out=(*carried.left_out, *modules))


def as_longformer(model: PreTrainedModel, window: Window, auto_class: Any = AutoModelForMaskedLM) -> PreTrainedModel:
    """Returns the model as the Longformer of one of transformers' Auto classes that computes the same.

    Its config has one more key, num_global_tokens: global_attention_mask must be 1 for that many tokens of each row.
    Raises ReleaseError if Longformer cannot compute the same.
    """
    check_longformer(model.config, has_mlm_head=auto_class is AutoModelForMaskedLM)
    config = model.config
    num_positions, reserved = _num_positions(model), config.pad_token_id + 1
    widths = longformer_widths(window, config.num_hidden_layers, num_positions)
    described: dict[str, Any] = {name: getattr(config, name) for name in COPIED}
    described[NUM_GLOBAL] = window.num_global
    longformer: Any = auto_class.from_config(
        LongformerConfig(
            **described,
            attention_window=widths,
            max_position_embeddings=num_positions + reserved,
            sep_token_id=config.eos_token_id,
        )
    )
    if getattr(model.base_model, "pooler", None) is None:
        without_pooler(longformer)
    state: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith(REBUILT_BUFFERS):
            continue
        renamed = longformer_name(name, model)
        state[renamed] = _with_reserved(value, num_positions + reserved) if "position_embeddings" in name else value
        for part in ("query", "key", "value"):
            if f".attention.self.{part}." in name:
                state[renamed.replace(part, f"{part}_global")] = value
    longformer.load_state_dict(state, strict=True)
    longformer.tie_weights()
    return longformer.eval()


def longformer_widths(window: Window, num_layers: int, num_positions: int) -> list[int]:
    """Returns Longformer's attention_window: for each layer, the width of its window, both sides together.

    Longformer pads rows to a multiple of the widest window, which every window must divide. For a window of 256 on each
    side in the lower 3 of 6 layers, and 1,200 positions: 512 512 512 2560 2560 2560, where 2560 covers any row.
    """
    local = 2 * window.each_side
    full = -(-2 * num_positions // local) * local
    return [local if window.is_local(number) else full for number in range(num_layers)]


def longformer_name(name: str, model: PreTrainedModel) -> str:
    """Returns the name in Longformer of one of the model's weights."""
    heads = BERT_HEADS.get(type(model).__name__, {})
    for own, other in {**heads, model.base_model_prefix: "longformer"}.items():
        if name == own or name.startswith(f"{own}."):
            return other + name.removeprefix(own)
    return name


def is_sentence_file(name: str) -> bool:
    """Returns whether a file carried over belongs to the modules of sentence-transformers."""
    return any(fnmatch(name, pattern) for pattern in SENTENCE_FILES) or ("/" in name and not name.startswith(TEMPLATES))


def _num_positions(model: PreTrainedModel) -> int:
    return model.config.max_position_embeddings - position_offset(cast(PreTrainedModel, model.base_model))


def _with_reserved(rows: Tensor, num_rows: int) -> Tensor:
    """Returns the position table with so many rows, the first of which are reserved: new ones are zero."""
    return torch.cat([rows.new_zeros(num_rows - len(rows), rows.shape[1]), rows])
