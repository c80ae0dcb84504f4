"""Rows for pairs of short sentences, and tiny models with and without a pair head."""

import json
import random
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForPreTraining

from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import HeldOut, PairKind, Pairs
from longmlm.settings.prepare import PackingMode, PrepareRecipe, Source
from longmlm.settings.pretrain import PretrainConfig, PretrainRecipe, PretrainRuntime, Start
from tests.support.families import demo_texts, tiny_config, tiny_tokenizer

ROW_LENGTH = 32
FAMILIES: dict[str, PairKind] = {"bert": "nsp", "albert": "sop"}


def short_sentences(folder: Path, num_documents: int = 40) -> Path:
    """Writes documents of twenty sentences of two to five words, and returns their file."""
    words, generator = " ".join(demo_texts()).split(), random.Random(1)
    words = [word.lower() for word in words if word.isalpha()]
    file = folder / "short.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(num_documents):
            sentences = [" ".join(generator.sample(words, generator.randint(2, 5))) for _ in range(20)]
            text = " ".join(f"{sentence.capitalize()}." for sentence in sentences)
            lines.write(json.dumps({"text": text}) + "\n")
    return file


def pair_rows(folder: Path, tokenizer: Path, packing: PackingMode = "doc-sentences", pairs: bool = True) -> Path:
    """Packs short sentences into rows, and returns their folder."""
    recipe = PrepareRecipe(
        tokenizer=str(tokenizer),
        row_length=ROW_LENGTH,
        sources=(Source(files=(str(short_sentences(folder)),)),),
        held_out_fraction=0.3,
        packing=packing,
        pairs=pairs,
    )
    prepare_rows(recipe, load_vocabulary(str(tokenizer)), folder / "rows")
    return folder / "rows"


def pair_model(folder: Path, family: str, **config: object) -> Path:
    """Writes a tiny BertForPreTraining or AlbertForPreTraining with its tokenizer, and returns the folder."""
    torch.manual_seed(0)
    AutoModelForPreTraining.from_config(tiny_config(family, 0, ROW_LENGTH, **config)).save_pretrained(folder)
    tiny_tokenizer(family, 0, ROW_LENGTH).save_pretrained(folder)
    return folder


def pair_settings(folder: Path, model: Path, rows: Path, kind: PairKind | None) -> PretrainConfig:
    """Returns the settings of eight steps of a model on these rows."""
    recipe = PretrainRecipe(
        num_steps=8,
        batch_tokens=200,
        learning_rate=1e-3,
        precision="no",
        pairs=Pairs(kind=kind) if kind else None,
        held_out=HeldOut(max_rows=24),
    )
    runtime = PretrainRuntime(
        rows_per_micro_batch=4, num_threads=1, log_every_steps=1, evaluate_every_steps=4, save_every_steps=4
    )
    start = Start(checkpoint=str(model))
    return PretrainConfig(run=str(folder / "run"), rows=str(rows), start=start, recipe=recipe, runtime=runtime)


def from_architecture(settings: PretrainConfig, model: Path) -> PretrainConfig:
    """Returns the settings of a run that starts from an untrained model like that in a folder."""
    return replace(settings, start=Start(architecture=str(model / "config.json"), tokenizer=str(model)))
