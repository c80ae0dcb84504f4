"""Dropout of any model in transformers: where its probabilities are, what they are, and how to set them."""

from collections.abc import Iterator
from typing import Any

from torch import nn

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
