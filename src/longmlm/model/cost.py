"""Estimates what training a model costs: FLOP per token, memory and disk."""

import re
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.model.architecture import architecture_of, has_dropout

# dense bf16 FLOP/s with fp32 accumulation, from NVIDIA's data sheets; the first pattern that matches counts
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
}
GATED = ("modernbert", "nomic_bert", "eurobert")  # families with two matrices into the feed-forward layer
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
    """What a training step computes; with `is_checkpointed`, activations are recomputed in the backward pass."""

    row_length: int
    selected_fraction: float
    is_bf16: bool
    is_checkpointed: bool = False


def cost_of(model: PreTrainedModel, work: Work) -> Cost:
    """Returns the cost of training the model.

    FLOP as in Kaplan et al. (2020) and Chowdhery et al. (2022, appendix B): 6 per matrix weight and token, and
    12 * width per layer and token attended to; recomputation is not counted. The head runs on selected tokens only.
    """
    parts = architecture_of(model)
    shared = _num_weights(parts.layers)  # ALBERT's layers share weights
    layers = shared * model.config.num_hidden_layers // len(parts.layers)
    head = parts.decoder_weight.numel() + (parts.head_matrix.weight.numel() if parts.head_matrix else 0)
    attention = 12 * _num_attended(model, work.row_length) * model.config.hidden_size
    num_parameters = model.num_parameters(only_trainable=True)
    return Cost(
        flop_per_token=6 * (_num_weights(parts.encoder) - shared + layers + work.selected_fraction * head) + attention,
        state_bytes=BYTES_PER_PARAMETER * num_parameters,
        row_bytes=round(work.row_length * _saved_bytes_per_token(model, work)),
        checkpoint_bytes=BYTES_PER_SAVED_PARAMETER * num_parameters,
    )


def peak_flops() -> float | None:
    """Returns the peak bf16 FLOP/s of this GPU; None if it is unknown."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    if re.search(r"\b(MIG|Laptop|Ti)\b", name):
        return None
    return next((peak for pattern, peak in PEAK_FLOPS.items() if re.search(rf"\b({pattern})\b", name)), None)


def _num_weights(module: nn.Module) -> int:
    """Returns the number of matrix weights that each token passes; DeBERTa's pos_* see relative positions instead."""
    return sum(
        part.weight.numel()
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear | nn.Conv1d) and not name.rpartition(".")[2].startswith("pos_")
    )


def _num_attended(model: PreTrainedModel, row_length: int) -> int:
    """Returns how many tokens, or relative positions, a token attends to, added up over the layers."""
    config = model.config
    match config.model_type:
        case "modernbert":
            window = 2 * config.sliding_window + 1
            is_local = [kind == "sliding_attention" for kind in config.layer_types]
            return sum(min(row_length, window) if local else row_length for local in is_local)
        case "deberta" | "deberta-v2" if config.relative_attention:
            span = (
                config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
            )
            span = min(row_length, span) if config.model_type == "deberta" else span
            buckets = getattr(config, "position_buckets", 0)  # of DeBERTa-v2, whose config does not declare it
            positions = len(config.pos_att_type or ()) * (buckets if buckets > 0 else span)
            return config.num_hidden_layers * (row_length + positions)
        case _:
            return config.num_hidden_layers * row_length


def _saved_bytes_per_token(model: PreTrainedModel, work: Work) -> float:
    """Returns the bytes per token that autograd keeps for the backward pass.

    Measured with torch's saved_tensors_hooks: so many per unit of width and per pair of tokens and head, and for each
    unit of the feed-forward layer, counted twice where it is gated, 4 bytes under bf16 autocast and 8 in fp32. With
    activation checkpointing, each layer keeps its input, and one layer the rest.
    """
    config, layers = model.config, architecture_of(model).layers
    feed_forward = max(part.in_features for part in layers.modules() if isinstance(part, nn.Linear))
    if config.model_type in GATED:
        feed_forward *= 2
    per_width, per_pair = _saved_bytes_of_attention(model, work.is_bf16)
    layer = per_width * config.hidden_size + (4 if work.is_bf16 else 8) * feed_forward
    layer += per_pair * work.row_length * config.num_attention_heads
    kept = config.num_hidden_layers * layer
    if work.is_checkpointed:
        kept = config.num_hidden_layers * 4 * config.hidden_size + layer
    return kept + 12 * work.selected_fraction * config.vocab_size


def _saved_bytes_of_attention(model: PreTrainedModel, is_bf16: bool) -> tuple[int, int]:
    """Returns the bytes per unit of width, and per pair of tokens and head.

    The pairs are kept by families that compute attention without a fused kernel and, on the CPU, by dropout.
    """
    dropout = has_dropout(architecture_of(model).layers)
    match model.config.model_type:
        case "deberta":  # its attention is computed in fp32
            return 73 if is_bf16 else 80, 28 if dropout else 20
        case "deberta-v2":
            width, pairs = (38, (2, 6)) if is_bf16 else (58, (4, 12))
        case "mpnet" | "roformer":
            width, pairs = (27, (2, 6)) if is_bf16 else (36, (4, 12))
        case _:
            width, pairs = 27 if is_bf16 else 36, (0, 0 if torch.cuda.is_available() else 12)
    return width, pairs[dropout]
