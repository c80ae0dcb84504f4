"""Estimates what training a model costs: FLOP per token, memory and disk."""

import re
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.model.architecture import architecture_of

# dense bf16 FLOP/s (fp16 where a GPU has no bf16) with fp32 accumulation, from NVIDIA's data sheets; the first
# pattern that matches counts
PEAK_FLOPS = {
    "B200": 2250e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100|H200|H800": 989e12,
    "H20": 148e12,
    "A100|A800": 312e12,
    "A40": 150e12,
    "A30|RTX 4090": 165e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 5090": 209e12,
    "RTX 3090": 71e12,
    "V100-SXM2": 125e12,
    "V100-PCIE": 112e12,
    "T4": 65e12,
}
BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and AdamW's two moments
BYTES_PER_SAVED_PARAMETER = 12  # the same without the gradient


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP per token, and bytes: of weights, gradients and optimizer together, per row, and per checkpoint."""

    flop_per_token: float
    state_bytes: int
    row_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a training step computes: `is_half` in bf16 or fp16, `is_checkpointed` with activations recomputed."""

    row_length: int
    selected_fraction: float
    is_half: bool
    is_checkpointed: bool = False


def cost_of(model: PreTrainedModel, work: Work) -> Cost:
    """Returns the cost of training the model.

    FLOP as in Kaplan et al. (2020) and Chowdhery et al. (2022, appendix B): 6 per matrix weight and token, and
    12 * length * width per layer for attention; recomputation is not counted. The head runs on selected tokens only.
    """
    parts = architecture_of(model)
    shared = _num_weights(parts.layers)  # ALBERT's layers share weights
    layers = shared * model.config.num_hidden_layers // len(parts.layers)
    head = _num_weights(parts.head_transform) + _num_weights(parts.decoder)
    attention = 12 * model.config.num_hidden_layers * work.row_length * model.config.hidden_size
    num_parameters = model.num_parameters(only_trainable=True)
    return Cost(
        flop_per_token=6 * (_num_weights(parts.encoder) - shared + layers + work.selected_fraction * head) + attention,
        state_bytes=BYTES_PER_PARAMETER * num_parameters,
        row_bytes=round(work.row_length * _saved_bytes_per_token(model, work)),
        checkpoint_bytes=BYTES_PER_SAVED_PARAMETER * num_parameters,
    )


def peak_flops() -> float | None:
    """Returns the peak half-precision FLOP/s of this GPU; None if it is unknown."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    if re.search(r"\b(MIG|Laptop|Ti)\b", name):
        return None
    return next((peak for pattern, peak in PEAK_FLOPS.items() if re.search(rf"\b({pattern})\b", name)), None)


def _num_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _saved_bytes_per_token(model: PreTrainedModel, work: Work) -> float:
    """Returns the bytes per token that autograd keeps for the backward pass.

    Measured on RoBERTa, BERT and ALBERT layers with torch's saved_tensors_hooks: 27 bytes per unit of width and 4 per
    unit of the feed-forward layer in half precision, 36 and 8 in fp32. On the CPU, attention with dropout keeps 12
    more per pair of tokens and head. With activation checkpointing, each layer keeps its input, and one layer the rest.
    """
    config, layers = model.config, architecture_of(model).layers
    feed_forward = max(part.out_features for part in layers.modules() if isinstance(part, nn.Linear))
    layer = 27 * config.hidden_size + 4 * feed_forward if work.is_half else 36 * config.hidden_size + 8 * feed_forward
    if not torch.cuda.is_available() and any(part.p for part in layers.modules() if isinstance(part, nn.Dropout)):
        layer += 12 * work.row_length * config.num_attention_heads
    kept = config.num_hidden_layers * layer
    if work.is_checkpointed:
        kept = config.num_hidden_layers * 4 * config.hidden_size + layer
    return kept + 12 * work.selected_fraction * config.vocab_size
