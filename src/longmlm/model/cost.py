"""Estimates what training a model costs: FLOP per token, memory and disk.

The model is called as in training, on fake tensors, which have no content: torch counts the FLOP of matrix products,
and hooks see what the layers save for the backward pass. Fused attention is the exception: what it saves depends on the
device, which may not be in this machine. `AttentionStandIn` takes its place.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from longmlm.artifacts.run import SAVED_BYTES
from longmlm.batches.collate import MlmBatch
from longmlm.model.architecture import architecture_of, layers_of
from longmlm.model.mlm import MAX_LOGITS, MlmObjective
from longmlm.model.packed_attention import attention_name, can_use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import WINDOW


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
BYTES_PER_SCORE = 12  # that a CPU's attention saves with dropout
COUNTED = "longmlm-counted"  # the attention of a ForwardPass in transformers' registry


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP per token; bytes of weights, gradients and optimizer, and of a checkpoint.

    A row takes `row_bytes` in training, `row_logit_bytes` of which are for logits, and `evaluation_row_bytes` in
    evaluation.
    """

    flop_per_token: float
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


def cost_of(model: PreTrainedModel, work: Work) -> Cost:
    """Returns the cost of training the model, whose layers are not to be checkpointed yet.

    FLOP are those of matrix products, three times as many as in a forward pass; recomputation is not counted. The head
    runs on selected tokens only. Bytes are those that the layers save for the backward pass. With activation
    checkpointing, every layer saves only its input, and one layer at a time, recomputed, saves everything. Embeddings
    and head take 10 bytes per unit of width, and logits BYTES_PER_LOGIT.
    """
    parts, config = architecture_of(model), model.config
    num_parameters, num_layers = model.num_parameters(only_trainable=True), config.num_hidden_layers
    head = parts.decoder_weight.numel() + (parts.head_matrix.weight.numel() if parts.head_matrix else 0)
    one, two = (forward_pass(model, work, num_rows) for num_rows in (1, 2))  # weights in half precision are in both
    flop, saved = two.flop - one.flop, (two.saved_bytes - one.saved_bytes) // work.row_length
    logits = BYTES_PER_LOGIT * work.selected_fraction * config.vocab_size
    layer, rest = saved / num_layers, 10 * config.hidden_size + logits
    kept = num_layers * 4 * config.hidden_size + layer if work.is_checkpointed else saved
    return Cost(
        flop_per_token=3 * flop / work.row_length + 6 * work.selected_fraction * head,
        state_bytes=BYTES_PER_PARAMETER * num_parameters,
        row_bytes=round(work.row_length * (rest + kept)),
        evaluation_row_bytes=round(work.row_length * (layer + rest)),
        checkpoint_bytes=SAVED_BYTES * num_parameters,
        row_logit_bytes=0 if work.has_all_logits else round(work.row_length * logits),
    )


class AttentionStandIn(torch.autograd.Function):
    """Computes nothing, and saves what fused attention does: query, key, value, output, and `extra_bytes` bytes."""

    @staticmethod
    # pyrefly: ignore[bad-override]  # torch declares forward with *args
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, extra_bytes: int) -> Tensor:
        """Returns an output in the layout that transformers expects."""
        output = torch.empty_like(query).transpose(1, 2).contiguous()
        ctx.save_for_backward(query, key, value, output, torch.empty(extra_bytes, dtype=torch.uint8))
        return output


@dataclass(slots=True)
class ForwardPass:
    """The FLOP of a forward pass, and the storages that its layers save for the backward pass, weights included."""

    work: Work
    is_packed: bool
    flop: int = 0
    saved: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    @property
    def saved_bytes(self) -> int:
        """The bytes of these storages."""
        return sum(storage.nbytes() for storage in self.saved.values())

    def save(self, tensor: Tensor) -> Tensor:
        """Records a saved tensor's storage; a fake one has no address, so its object identifies it."""
        storage = tensor.untyped_storage()
        self.saved[storage._cdata] = storage  # noqa: SLF001
        return tensor

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, _: object, dropout: float = 0.0, **options: Any
    ) -> tuple[Tensor, None]:
        """Takes the place of fused attention.

        Packed rows save no mask; with a window and dropout on a GPU, each block saves a copy of its keys and values.
        Padded rows save a mask with a value per pair of tokens or, with dropout on a CPU, the scores of every head.
        """
        work, window = self.work, cast("Window | None", getattr(module, WINDOW, None))
        query, key, value = (one.to(torch.bfloat16) if work.is_half else one for one in (query, key, value))
        num_rows, num_heads, length, head_dim = query.shape
        attended, num_pairs, extra_bytes = work.row_length, num_rows * length**2, 0
        if not self.is_packed:
            near = options.get("sliding_window")  # ModernBERT's counts the token itself
            attended = min(attended, 2 * near - 1) if near else attended
            extra_bytes = num_pairs * (BYTES_PER_SCORE * num_heads if dropout and not work.has_gpu else query.itemsize)
        else:
            attended = work.document_length or attended
            if window:
                attended = window.num_attended(attended)
            if window and work.has_gpu and dropout:
                keys = min(work.row_length, window.block_size + 2 * window.each_side + window.num_global)
                extra_bytes = 2 * key.nbytes * keys // window.block_size
        self.flop += 4 * num_rows * length * attended * num_heads * head_dim
        return AttentionStandIn.apply(query, key, value, extra_bytes), None


def forward_pass(model: PreTrainedModel, work: Work, num_rows: int) -> ForwardPass:
    """Returns what the encoder computes and saves for so many rows in training: padded ones, if it cannot pack them."""
    attention, is_training = attention_name(model), model.base_model.training
    is_packed = attention != "eager" and can_use_packed_attention(model.config)
    objective, counted = MlmObjective(model, "bf16" if work.is_half else "no"), ForwardPass(work, is_packed)
    encoder, saving = objective.encoder, saved_tensors_hooks(counted.save, lambda tensor: tensor)
    with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
        stack.callback(encoder.train, is_training)
        if attention != "eager":  # torch counts the products of eager attention itself
            AttentionInterface.register(COUNTED, counted.attend)
            AttentionMaskInterface.register(COUNTED, _no_mask)
            model.set_attn_implementation(COUNTED)
            stack.callback(model.set_attn_implementation, attention)
        for layer in layers_of(encoder):
            stack.callback(layer.register_forward_pre_hook(lambda *_: saving.__enter__()).remove)
            stack.callback(layer.register_forward_hook(lambda *_: saving.__exit__(None, None, None)).remove)
        weights = {
            name: torch.empty(value.shape, dtype=value.dtype, requires_grad=value.requires_grad)
            for name, value in (*encoder.named_parameters(), *encoder.named_buffers())
        }
        empty, length = torch.zeros(0, dtype=torch.int64), work.row_length
        tokens = torch.zeros((1, num_rows * length) if is_packed else (num_rows, length), dtype=torch.int64)
        mask, row_lengths = (None, (length,) * num_rows) if is_packed else (tokens.bool(), ())
        inputs = objective.encoder_inputs(MlmBatch(tokens, mask, empty, empty, row_lengths=row_lengths))
        with objective.autocast(tokens), FlopCounterMode(display=False) as flop:
            functional_call(encoder.train(), weights, (), inputs)
    counted.flop += flop.get_total_flops()
    return counted


def _no_mask(**_: object) -> None:
    return None


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
