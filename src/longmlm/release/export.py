"""Export of a trained model as a stock transformers folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM

from longmlm.model.architecture import architecture_of
from longmlm.model.carried import Carried, save_model
from longmlm.model.loading import LoadedModel
from longmlm.release.longformer import as_longformer, carried_by, longformer_window
from longmlm.settings.release import WeightType

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export(trained: LoadedModel, weights: WeightType, folder: Path, max_shard_size: str | None = None) -> None:
    """Writes a stock model with the trained weights, in files of at most `max_shard_size`, and the tokenizer.

    A model with a window becomes a Longformer. Raises ReleaseError if Longformer cannot compute what the model does.
    """
    num_positions = architecture_of(trained.model).num_positions
    if window := longformer_window(trained):
        stock: Any = as_longformer(trained.model, window)
    else:
        stock = AutoModelForMaskedLM.from_config(trained.model.config)
        stock.load_state_dict(trained.model.state_dict(), strict=True)
        stock.tie_weights()
    stock.to(TYPES[weights])
    stock.config.dtype = TYPES[weights]
    trained.tokenizer.model_max_length = num_positions
    carried = carried_in_type(carried_by(trained), weights)
    save_model(stock, trained.tokenizer, carried, folder, max_shard_size=max_shard_size)


def carried_in_type(carried: Carried, weights: WeightType) -> Carried:
    """Returns what a model carries, with its weights cast to the stored type."""
    stored = {name: value.to(TYPES[weights]) for name, value in carried.weights.items() if value.is_floating_point()}
    return replace(carried, weights={**carried.weights, **stored})
