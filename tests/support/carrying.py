"""Runs that start from a model with a pooler and modules, and what their checkpoints must then hold."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from longmlm.settings.pretrain import PretrainConfig, Start
from tests.support.extras import extra_weights
from tests.support.training import with_recipe, with_runtime


def start_from(settings: PretrainConfig, folder: Path, run: Path) -> PretrainConfig:
    """Returns settings of four steps that start from the model in a folder."""
    shorter = with_recipe(with_runtime(settings, save_every_steps=2, checkpoints_kept=9), num_steps=4)
    return replace(shorter, start=Start(checkpoint=str(folder)), run=str(run))


def base_model(settings: PretrainConfig, folder: Path) -> Path:
    """Writes a base model that the run's rows fit."""
    described = json.loads(Path(str(settings.start.architecture)).read_text())
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**described)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(settings.start.tokenizer).save_pretrained(folder)
    return folder


def assert_carries_all(checkpoint: Path) -> None:
    """Fails unless the checkpoint has the pooler, bit for bit, and the files."""
    stored, extra = load_file(checkpoint / "model.safetensors"), extra_weights("roberta")
    assert all(torch.equal(stored[name], value) for name, value in extra.items())
    pooler = AutoModel.from_pretrained(checkpoint).pooler.dense
    assert torch.equal(pooler.weight, extra["roberta.pooler.dense.weight"])
    assert (checkpoint / "2_Dense" / "model.safetensors").is_file()
    assert json.loads((checkpoint / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
