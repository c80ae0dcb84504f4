"""Estimates what training a model costs: FLOP per token, memory and disk."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from longmlm.artifacts.run import SAVED_BYTES
from longmlm.model.architecture import architecture_of, dropout_of
from longmlm.model.families import FAMILIES
from longmlm.model.mlm import MAX_LOGITS
from longmlm.model.packed_attention import can_use_packed_attention
from longmlm.model.window_attention import layers_by_window, window_of


class Gpu(NamedTuple):
    """Peak FLOP/s in dense bf16 (fp16 where a GPU has no bf16) with fp32 accumulation, and GiB of memory."""

    peak_flops: float
    memory_gib: int
    has_bf16: bool = True


# from NVIDIA's data sheets; the first matching pattern wins
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
    "V100 SXM2": Gpu(125e12, 16, has_bf16=False),
    "V100 PCIe|V100": Gpu(112e12, 16, has_bf16=False),
    "T4": Gpu(65e12, 16, has_bf16=False),
}
BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and the optimizer's two states
BYTES_PER_LOGIT = 12  # fp32, with its gradients
USED_SHARE = 0.85  # of the free memory; the rest is for temporary buffers, weights cast to bf16, and fragmentation
CPU_TOKENS = 2048  # per micro-batch on a CPU


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP per token, in total and of attention; bytes of weights, gradients and optimizer, and of a checkpoint.

    A row takes `row_bytes` in training, `row_logit_bytes` of which are for logits, and `evaluation_row_bytes` in
    evaluation.
    """

    flop_per_token: float
    attention_flop_per_token: int
    state_bytes: int
    row_bytes: int
    evaluation_row_bytes: int
    checkpoint_bytes: int
    row_logit_bytes: int = 0

    def batch_bytes(self, num_rows: int) -> int:
        """Returns the bytes that a micro-batch takes in training, with at most MAX_LOGITS logits at a time."""
        logits = min(num_rows * self.row_logit_bytes, BYTES_PER_LOGIT * MAX_LOGITS)
        return num_rows * (self.row_bytes - self.row_logit_bytes) + logits

    def fitting_rows(self, free_bytes: int, state_bytes: int) -> int:
        """Returns how many rows fit into free memory beside the state still to allocate; 0 if none fits."""
        room = int(USED_SHARE * free_bytes) - state_bytes
        in_parts = (room - BYTES_PER_LOGIT * MAX_LOGITS) // (self.row_bytes - self.row_logit_bytes)
        return max(0, room // self.row_bytes, in_parts)


@dataclass(frozen=True, slots=True)
class Work:
    """What a training step computes: in bf16 or fp16 if `is_half`, recomputing activations if `is_checkpointed`.

    It has all logits of a micro-batch at once if `has_all_logits`, as in ZeRO stage 3; otherwise in parts. If documents
    are isolated, a token has `document_length` tokens of its own document in its row, on average.
    """

    row_length: int
    selected_fraction: float
    is_half: bool
    is_checkpointed: bool = False
    has_gpu: bool = field(default_factory=torch.cuda.is_available)
    has_all_logits: bool = False
    document_length: int | None = None

    def attended_length(self, config: Any) -> int:
        """Returns over how many tokens attention is computed: a row or, in packed batches, an isolated document."""
        return self.document_length if self.document_length and can_use_packed_attention(config) else self.row_length


def cost_of(model: PreTrainedModel, work: Work) -> Cost:
    """Returns the cost of training the model.

    FLOP as in Kaplan et al. (2020) and Chowdhery et al. (2022, appendix B): 6 per matrix weight and token, and
    12 * width per layer and token attended to; recomputation is not counted. The head runs on selected tokens only.

    Bytes that autograd saves were measured with torch's saved_tensors_hooks. Each unit of the feed-forward layer,
    counted twice if it is gated, takes 4 bytes in half precision and 8 in fp32; `_attention_bytes` gives the rest of a
    layer. With activation checkpointing, every layer saves only its input, and one layer at a time, recomputed, saves
    everything. Embeddings and head take 10 bytes per unit of width, and logits BYTES_PER_LOGIT.
    """
    parts, config = architecture_of(model), model.config
    num_parameters, num_layers = model.num_parameters(only_trainable=True), config.num_hidden_layers
    head = parts.decoder_weight.numel() + (parts.head_matrix.weight.numel() if parts.head_matrix else 0)
    shared = _num_weights(parts.layers)  # ALBERT's layers share weights
    applied = shared * num_layers // len(parts.layers)
    num_weights = _num_weights(parts.encoder) - shared + applied + work.selected_fraction * head
    attention = 12 * _num_attended(config, work.attended_length(config)) * config.hidden_size
    widths = [part.in_features for part in parts.layers.modules() if isinstance(part, nn.Linear)]
    feed_forward = max(widths) * (2 if FAMILIES[config.model_type].is_gated else 1)
    per_width, per_pair = _attention_bytes(config, parts.layers, work)
    layer = per_width * config.hidden_size + (4 if work.is_half else 8) * feed_forward + per_pair * work.row_length
    logits = BYTES_PER_LOGIT * work.selected_fraction * config.vocab_size
    rest = 10 * config.hidden_size + logits
    kept = num_layers * 4 * config.hidden_size + layer if work.is_checkpointed else num_layers * layer
    return Cost(
        flop_per_token=float(6 * num_weights + attention),
        attention_flop_per_token=attention,
        state_bytes=BYTES_PER_PARAMETER * num_parameters,
        row_bytes=round(work.row_length * (rest + kept)),
        evaluation_row_bytes=round(work.row_length * (layer + rest)),
        checkpoint_bytes=SAVED_BYTES * num_parameters,
        row_logit_bytes=0 if work.has_all_logits else round(work.row_length * logits),
    )


def document_length(numbers: Sequence[int], row_length: int) -> int:
    """Returns an estimate of how many tokens of its own document a token has in its row, on average.

    `numbers[k]` counts the documents of 2^k to 2^(k+1) - 1 tokens; without any, a document is as long as a row. With 3
    of 64 to 127 tokens and 1 of 128 to 255, the mean over the tokens is (3 * 96 * 96 + 192 * 192) / (3 * 96 + 192) =
    134.
    """
    sizes = 1.5 * 2.0 ** np.arange(len(numbers))
    tokens = np.array(numbers) * sizes
    return round(float(np.average(sizes.clip(max=row_length), weights=tokens))) if tokens.any() else row_length


def micro_batch_rows(num_fitting: int, num_rows: int, row_length: int, has_gpu: bool) -> int:
    """Returns the rows of a micro-batch, for a rank whose share of the global batch is `num_rows`.

    A GPU is fastest with as many rows as fit; a CPU gains nothing beyond CPU_TOKENS. On 2 cores of an AMD EPYC, in bf16
    without dropout, 1, 2, 4, 8 and 16 rows of 384 tokens through 4 layers of 256 train 7.4, 10.2, 12.4, 13.9 and 13.7
    thousand tokens/s; 1, 2, 4 and 8 rows of 512 tokens through 6 layers of 384 train 2.9, 3.5, 4.0 and 3.8.
    """
    fastest = num_fitting if has_gpu else max(1, CPU_TOKENS // row_length)
    return min(num_fitting, num_rows, fastest)


def peak_flops() -> float | None:
    """Returns the peak half-precision FLOP/s of this GPU; None if the GPU is unknown."""
    gpu = gpu_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return gpu.peak_flops if gpu else None


def gpu_of(name: str) -> Gpu | None:
    """Returns the data of a GPU, with the memory size in its name, if any (A100 40GB); None if the GPU is unknown."""
    name = name.replace("-", " ")  # H100 PCIe and H100-PCIe, V100-SXM2-16GB
    if re.search(r"\b(MIG|Laptop|Ti)\b", name, re.IGNORECASE):
        return None
    found = (gpu for pattern, gpu in GPUS.items() if re.search(rf"\b({pattern})\b", name, re.IGNORECASE))
    gpu, size = next(found, None), re.search(r"\b(\d+) ?GB\b", name, re.IGNORECASE)
    return gpu._replace(memory_gib=int(size[1])) if gpu and size else gpu


def _num_weights(module: nn.Module) -> int:
    """Returns the number of matrix weights applied to each token; DeBERTa's pos_* apply to relative positions."""
    return sum(
        part.weight.numel()
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear | nn.Conv1d) and not name.rpartition(".")[2].startswith("pos_")
    )


def _num_attended(config: Any, row_length: int) -> int:
    """Returns how many tokens and relative positions a token attends to, summed over the layers."""
    match config.model_type:
        case "modernbert":
            local = min(row_length, 2 * config.sliding_window + 1)
            return sum(local if kind == "sliding_attention" else row_length for kind in config.layer_types)
        case "deberta" | "deberta-v2" if config.relative_attention:
            most = config.max_relative_positions
            span = most if most > 0 else config.max_position_embeddings
            span = min(row_length, span) if config.model_type == "deberta" else span
            buckets = getattr(config, "position_buckets", 0)  # of DeBERTa-v2, whose config does not declare it
            positions = len(config.pos_att_type or ()) * (buckets if buckets > 0 else span)
            return config.num_hidden_layers * (row_length + positions)
        case _:
            kinds = layers_by_window(config).items()
            return sum(number * (window.num_attended(row_length) if window else row_length) for window, number in kinds)


def _attention_bytes(config: Any, layers: nn.ModuleList, work: Work) -> tuple[int, int]:
    """Returns the saved bytes per unit of width, and per pair of tokens that see each other, over all heads.

    Scores are saved for families without a fused attention kernel. On a CPU with dropout they are also saved for
    models that cannot use `packed_attention`; their fused attention saves a mask value for each pair, in the type of
    the activations, on a GPU, where nearly every micro-batch has padding, and wherever documents are isolated.
    """
    dropout, heads, half = dropout_of(layers) > 0, config.num_attention_heads, work.is_half
    width, not_fused = 27 if half else 36, heads * (2 if half else 4) * (3 if dropout else 1)
    match config.model_type:
        case "deberta":  # its attention is computed in fp32
            return 73 if half else 80, heads * (28 if dropout else 20)
        case "deberta-v2":
            return 38 if half else 58, not_fused
        case "mpnet" | "roformer":
            return width, not_fused
    window = window_of(config)
    if window and work.has_gpu and dropout:  # copies of keys and values, for each block of queries
        keys = min(work.row_length, window.block_size + 2 * window.each_side + window.num_global)
        share = layers_by_window(config)[window] / config.num_hidden_layers
        width += round(share * (4 if half else 8) * keys / window.block_size)
    if can_use_packed_attention(config):
        return width, 0
    has_mask, has_scores = work.has_gpu or work.document_length is not None, dropout and not work.has_gpu
    return width, (2 if half else 4) * has_mask + 12 * heads * has_scores
