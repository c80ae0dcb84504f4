"""Tiny base models with what the MLM model does not use: pooler, heads, sentence-transformers' modules, other files."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.families import WIDTH
from tests.support.tiny import tiny_folder

EXTRAS = {  # by family: padding, and the names and shapes of weights outside the MLM model
    "bert": (0, {
        "bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,),
        "cls.seq_relationship.weight": (2, WIDTH), "cls.seq_relationship.bias": (2,),
    }),
    "albert": (0, {
        "albert.pooler.weight": (WIDTH, WIDTH), "albert.pooler.bias": (WIDTH,),
        "sop_classifier.classifier.weight": (2, WIDTH), "sop_classifier.classifier.bias": (2,),
    }),
    "roberta": (1, {"roberta.pooler.dense.weight": (WIDTH, WIDTH), "roberta.pooler.dense.bias": (WIDTH,)}),
    "electra": (0, {"discriminator_predictions.dense.weight": (WIDTH, WIDTH)}),
}  # fmt: skip
PARTS = {
    "bert": ("pooler", "NSP head"),
    "albert": ("pooler", "SOP head"),
    "roberta": ("pooler",),
    "electra": ("discriminator_predictions",),
}
MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
DENSE_WIDTH = 8


def extra_weights(family: str) -> dict[str, Tensor]:
    """Returns random weights of the family that the MLM model does not use."""
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in EXTRAS[family][1].items()}


def folder_with_heads(folder: Path, family: str) -> Path:
    """Writes a tiny base model that has these weights, and returns its folder."""
    return with_heads(tiny_folder(folder, family, EXTRAS[family][0]), family)


def with_heads(folder: Path, family: str) -> Path:
    """Adds these weights to the model in the folder, and returns it."""
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **extra_weights(family)}, folder / "model.safetensors", {"format": "pt"})
    return folder


def sentence_folder(folder: Path, family: str = "bert", modules: tuple[str, ...] = MODULES) -> Path:
    """Turns a base model into a sentence-transformers model as older versions of that library wrote it."""
    return with_modules(folder_with_heads(folder, family), modules)


def with_modules(folder: Path, modules: tuple[str, ...] = MODULES) -> Path:
    """Adds the files of such a model, and returns the folder."""
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(modules) if index)]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(zip(paths, modules, strict=True))
    ]
    contents = {
        "modules.json": listed,
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "q "}, "similarity_fn_name": "dot"},
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "2_Dense/config.json": {
            "in_features": WIDTH,
            "out_features": DENSE_WIDTH,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    }
    for path in paths[1:]:
        (folder / path).mkdir()
    for name, content in contents.items():
        if (folder / name).parent.is_dir():
            (folder / name).write_text(json.dumps(content))
    if "Dense" in modules:
        generator = torch.Generator().manual_seed(7)
        weights = {"linear.weight": torch.randn(DENSE_WIDTH, WIDTH, generator=generator), "linear.bias": torch.ones(8)}
        torch.save(weights, folder / "2_Dense" / "pytorch_model.bin")
    return folder
