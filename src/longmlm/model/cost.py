"""Estimates what training a model costs: FLOP per token, memory and disk."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.model.architecture import architecture_of


class Gpu(NamedTuple):
    """Peak FLOP/s in dense bf16 (fp16 where a GPU has no bf16) with fp32 accumulation, and GiB of memory."""

    peak_flops: float
    memory_gib: int


# from NVIDIA's data sheets; the first pattern that matches counts
GPUS = {
    "B200": Gpu(2250e12, 180),
    "H100 PCIe": Gpu(756e12, 80),
    "H100 NVL": Gpu(835e12, 94),
    "H200": Gpu(989e12, 141),
    "H100|H800": Gpu(989e12, 80),
    "H20": Gpu(148e12, 96),
    "A100|A800": Gpu(312e12, 80),
    "A40": Gpu(150e12, 48),
    "A30|RTX 4090": Gpu(165e12, 24),
    "L40S": Gpu(362e12, 48),
    "L40": Gpu(181e12, 48),
    "L4": Gpu(121e12, 24),
    "RTX 5090": Gpu(209e12, 32),
    "RTX 3090": Gpu(71e12, 24),
    "V100-SXM2": Gpu(125e12, 16),
    "V100-PCIE": Gpu(112e12, 16),
    "T4": Gpu(65e12, 16),
}
BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and AdamW's two moments
BYTES_PER_SAVED_PARAMETER = 12  # the same without the gradient
USED_SHARE = 0.85  # of the free memory; the rest is for temporary buffers, weights cast to bf16, and fragmentation
CPU_TOKENS = 2048  # of a micro-batch
GB = 1e9


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP per token, of which attention, and bytes: of weights, gradients and optimizer together, and of a checkpoint.

    A row takes `row_bytes` in training and `evaluation_row_bytes` where no gradient is computed.
    """

    flop_per_token: float
    attention_flop_per_token: int
    state_bytes: int
    row_bytes: int
    evaluation_row_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a training step computes: `is_half` in bf16 or fp16, `is_checkpointed` with activations recomputed."""

    row_length: int
    selected_fraction: float
    is_half: bool
    is_checkpointed: bool = False
    has_gpu: bool = field(default_factory=torch.cuda.is_available)


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
    layer, logits = _bytes_per_token(model, work)
    num_layers = model.config.num_hidden_layers
    kept = num_layers * 4 * model.config.hidden_size + layer if work.is_checkpointed else num_layers * layer
    return Cost(
        flop_per_token=6 * (_num_weights(parts.encoder) - shared + layers + work.selected_fraction * head) + attention,
        attention_flop_per_token=attention,
        state_bytes=BYTES_PER_PARAMETER * num_parameters,
        row_bytes=round(work.row_length * (kept + logits)),
        evaluation_row_bytes=round(work.row_length * (layer + logits)),
        checkpoint_bytes=BYTES_PER_SAVED_PARAMETER * num_parameters,
    )


def fitting_rows(free_bytes: int, state_bytes: int, row_bytes: int) -> int:
    """Returns how many rows fit into free memory beside the state that is yet to be allocated; 0 if not even one."""
    return max(0, (int(USED_SHARE * free_bytes) - state_bytes) // row_bytes)


def micro_batch_rows(num_fitting: int, num_rows: int, row_length: int, has_gpu: bool) -> int:
    """Returns the rows of a micro-batch of a rank whose share of the global batch is `num_rows`.

    A GPU is fastest with as many as fit. A CPU is not: on 2 cores of an AMD EPYC, bf16, no dropout, a model of 4 x 256
    trains 7.4, 10.2, 12.4, 13.9 and 13.7 thousand tokens/s with 1, 2, 4, 8 and 16 rows of 384 tokens, one of 6 x 384
    2.9, 3.5, 4.0 and 3.8 with 1, 2, 4 and 8 rows of 512.
    """
    fastest = num_fitting if has_gpu else max(1, CPU_TOKENS // row_length)
    return min(num_fitting, num_rows, fastest)


def peak_flops() -> float | None:
    """Returns the peak half-precision FLOP/s of this GPU; None if it is unknown."""
    gpu = gpu_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return gpu.peak_flops if gpu else None


def gpu_of(name: str) -> Gpu | None:
    """Returns the data of a GPU, with the memory that its name says, as in A100 40GB; None for an unknown one."""
    if re.search(r"\b(MIG|Laptop|Ti)\b", name):
        return None
    gpu = next((gpu for pattern, gpu in GPUS.items() if re.search(rf"\b({pattern})\b", name)), None)
    size = re.search(r"\b(\d+) ?GB\b", name)
    return gpu._replace(memory_gib=int(size[1])) if gpu and size else gpu


def _num_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _bytes_per_token(model: PreTrainedModel, work: Work) -> tuple[int, float]:
    """Returns the bytes per token that autograd keeps for the backward pass, of a layer and of the logits.

    Measured on RoBERTa, BERT and ALBERT layers with torch's saved_tensors_hooks: 27 bytes per unit of width and 4 per
    unit of the feed-forward layer in half precision, 36 and 8 in fp32. On the CPU, attention with dropout keeps 12
    more per pair of tokens and head. With activation checkpointing, each layer keeps its input, and one layer the rest.
    """
    config, layers = model.config, architecture_of(model).layers
    feed_forward = max(part.out_features for part in layers.modules() if isinstance(part, nn.Linear))
    layer = 27 * config.hidden_size + 4 * feed_forward if work.is_half else 36 * config.hidden_size + 8 * feed_forward
    if not work.has_gpu and any(part.p for part in layers.modules() if isinstance(part, nn.Dropout)):
        layer += 12 * work.row_length * config.num_attention_heads
    return layer, 12 * work.selected_fraction * config.vocab_size
