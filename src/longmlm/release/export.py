"""Export of a trained model as a stock transformers folder."""

from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM

from longmlm.model.architecture import architecture_of
from longmlm.model.loading import LoadedModel, quiet_transformers
from longmlm.settings.release import WeightType

LARGEST_FILE = "50GB"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export(trained: LoadedModel, weights: WeightType, folder: Path, max_shard_size: str | None = None) -> None:
    """Writes a stock model with the trained weights, in files of at most `max_shard_size`, and the tokenizer."""
    num_positions = architecture_of(trained.model).num_positions
    stock = AutoModelForMaskedLM.from_config(trained.model.config)
    stock.load_state_dict(trained.model.state_dict(), strict=True)
    stock.tie_weights()
    stock.to(TYPES[weights])
    stock.config.dtype = TYPES[weights]
    with quiet_transformers():
        stock.save_pretrained(folder, max_shard_size=max_shard_size or LARGEST_FILE)
    trained.tokenizer.model_max_length = num_positions
    trained.tokenizer.save_pretrained(folder)
