"""Attention over packed batches, whose rows follow each other in one sequence, without padding.

On a GPU, a jagged nested tensor lets torch's flash kernel attend within each row. For training on a CPU, in bf16 or
with dropout, attention is computed in chunks that stay in the cache, and the backward pass recomputes probabilities;
with dropout, torch's own attention saves every probability. Otherwise, torch's attention runs on one row at a time.

Example: 12 heads, two rows of 1536 and 400 tokens. A chunk holds at most 1536 x 1536 probabilities. The first row takes
12 chunks, one per head; the second takes one chunk for all 12 heads (12 x 400 x 400).

In bf16, chunks round scores and probabilities to bf16, as transformers' eager attention does under autocast.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.window import Block, Window

ATTENTION_NAME = "longmlm"  # in transformers' registry
MAX_CHUNK = 1536 * 1536  # probabilities; the backward pass holds three buffers of this size, in bf16 of 4.7 MB each
MIN_POOL = 2**21  # numbers in a dropout pool, or as many as the call has probabilities if these are fewer


def use_packed_attention(model: PreTrainedModel) -> None:
    """Makes an encoder with a learned position table use `packed_attention` if it uses sdpa; others are unchanged."""
    if can_use_packed_attention(model.config) and attention_name(model) == "sdpa":
        AttentionInterface.register(ATTENTION_NAME, packed_attention)
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        model.set_attn_implementation(ATTENTION_NAME)


def can_use_packed_attention(config: PreTrainedConfig) -> bool:
    """Returns whether models with this config can use `packed_attention`: encoders with a learned position table."""
    return config.model_type in LEARNED_FAMILIES and not getattr(config, "is_decoder", False)


def attention_name(model: PreTrainedModel) -> str:
    """Returns transformers' name for the model's attention implementation, such as sdpa."""
    return str(model.config._attn_implementation)  # noqa: SLF001 - transformers has no public getter


class PackedRows(NamedTuple):
    """The lengths of the rows in a packed batch; on the device, the start of each and, last, the number of tokens."""

    lengths: tuple[int, ...]
    starts: Int64[Tensor, " rows_and_end"]

    @property
    def slices(self) -> list[slice]:
        """The tokens of each row."""
        ends = itertools.accumulate(self.lengths)
        return [slice(end - length, end) for length, end in zip(self.lengths, ends, strict=True)]


def by_row(
    lengths: Sequence[int], states: Sequence[Shaped[Tensor, "tokens *size"]], function: Callable[..., Tensor]
) -> Shaped[Tensor, "tokens *result"]:
    """Returns, packed, what a function of padded rows computes from packed states.

    Its arguments are the states with padding, and which of them are tokens. It is called for groups of rows,
    the longest of which is less than twice as long as the shortest: rows of 3 9 2 tokens form the groups
    [[0 1 2], [12 13 .]] and [[3 4 ... 11]], in which the dot is padding.
    """
    sizes, device, outputs, order = torch.tensor(lengths), states[0].device, [], []
    starts, magnitudes = sizes.cumsum(0) - sizes, torch.tensor([length.bit_length() for length in lengths])
    for magnitude in magnitudes.unique():
        rows = (magnitudes == magnitude).nonzero()  # a column
        index = torch.arange(int(sizes[rows].max()))
        is_token = (index < sizes[rows]).to(device)
        indices = (starts[rows] + index.minimum(sizes[rows] - 1)).to(device)
        outputs.append(function(*(one[indices] for one in states), is_token)[is_token])
        order.append(indices[is_token])
    return torch.cat(outputs)[torch.cat(order).argsort()]


def packed_attention(
    module: Any,
    query: Float[Tensor, "rows heads length head_dim"],
    key: Float[Tensor, "rows heads length head_dim"],
    value: Float[Tensor, "rows heads length head_dim"],
    attention_mask: Tensor | None,
    packed_rows: PackedRows | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "rows length heads head_dim"], None]:
    """Computes attention within each row of a packed batch, which has no mask; for others, calls `sdpa`.

    `sdpa` is transformers' attention. Of its options, `dropout` and `scaling` apply to packed batches.
    """
    if packed_rows is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    dropout, scale = options.get("dropout", 0.0), options.get("scaling") or query.shape[-1] ** -0.5
    if query.device.type != "cpu":
        return jagged_attention(query, key, value, packed_rows, dropout, scale), None
    is_trained = torch.is_grad_enabled() and query.requires_grad
    if dropout or (is_trained and query.dtype == torch.bfloat16):
        return ChunkedAttention.apply(query, key, value, packed_rows.slices, AttentionOptions(dropout, scale)), None
    rows = [states.split(packed_rows.lengths, 2) for states in (query, key, value)]
    outputs = [scaled_dot_product_attention(*row, scale=scale) for row in zip(*rows, strict=True)]
    return torch.cat([output.transpose(1, 2) for output in outputs], dim=1), None


def jagged_attention(
    query: Float[Tensor, "1 heads tokens head_dim"],
    key: Float[Tensor, "1 heads tokens head_dim"],
    value: Float[Tensor, "1 heads tokens head_dim"],
    packed_rows: PackedRows,
    dropout: float,
    scale: float,
) -> Float[Tensor, "1 tokens heads head_dim"]:
    """Returns attention within each row, by torch's kernels for rows of different lengths."""
    shortest, longest = min(packed_rows.lengths), max(packed_rows.lengths)
    nested = [
        nested_tensor_from_jagged(
            states[0].transpose(0, 1), packed_rows.starts, min_seqlen=shortest, max_seqlen=longest
        ).transpose(1, 2)
        for states in (query, key, value)
    ]
    output = scaled_dot_product_attention(*nested, dropout_p=dropout, scale=scale)
    return output.transpose(1, 2).values().unsqueeze(0)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Dropout probability, the factor that scores are multiplied by, and the window; without one, attention is full."""

    dropout: float
    scale: float
    window: Window | None = None


def chunks(rows: Sequence[slice], num_heads: int, window: Window | None = None) -> Iterator[Block]:
    """Yields blocks of some heads with at most MAX_CHUNK probabilities, or one block of one head."""
    for row in rows:
        length = row.stop - row.start
        blocks = window.blocks(length, torch.device("cpu")) if window else list(_blocks_of_all_keys(length))
        num_together = min(num_heads, max(1, MAX_CHUNK // max((block.num_pairs for block in blocks), default=1)))
        for head in range(0, num_heads, num_together):
            heads = slice(head, min(num_heads, head + num_together))
            yield from (block.shifted(row.start)._replace(heads=heads) for block in blocks)


def _blocks_of_all_keys(length: int) -> Iterator[Block]:
    num_queries = max(1, MAX_CHUNK // max(1, length))
    for begin in range(0, length, num_queries):
        yield Block(slice(begin, min(length, begin + num_queries)), (slice(0, length),))


@dataclass(frozen=True, slots=True)
class DropoutPool:
    """Random zeros and ones, of which each chunk takes a slice as its dropout mask; the same for the same seed.

    Drawing every mask anew would take longer than the attention itself. In a call of up to MIN_POOL probabilities,
    slices do not overlap. In a larger one they start at random indices: within a mask all values are independent, but
    two masks may hold the same values, shifted. Kept values are multiplied by `scale`, so that the expected value does
    not change.
    """

    pool: Tensor
    begins: list[int]
    scale: float

    def mask(self, number: int, shape: torch.Size) -> Tensor:
        """Returns the mask of a chunk, counted from 0."""
        begin = self.begins[number]
        return self.pool[begin : begin + shape.numel()].view(shape)


def new_dropout_pool(probability: float, seed: int, like: Tensor, sizes: Sequence[int]) -> DropoutPool:
    """Returns a pool for chunks of these sizes; `probability` is rounded to a multiple of 1/65536."""
    generator = np.random.SFC64(seed)
    size = min(sum(sizes), max(MIN_POOL, 2 * max(sizes, default=0)))
    words = torch.from_numpy(generator.random_raw(max(1, (size + 3) // 4)))
    num_dropped = min(round(probability * 2**16), 2**16 - 1)
    is_kept = words.view(torch.int16).ge_(num_dropped - 2**15)
    if size == sum(sizes):
        begins = list(itertools.accumulate(sizes[:-1], initial=0))
    else:
        begins = [generator.random_raw() % (size - own + 1) for own in sizes]
    return DropoutPool(is_kept.to(like.dtype), begins, 1 / (1 - num_dropped / 2**16))


class ChunkedAttention(torch.autograd.Function):
    """softmax(scale * query keyᵀ) value with dropout within each row, chunk by chunk; zero between the rows."""

    @staticmethod
    # pyrefly: ignore[bad-override]  # torch declares forward with *args
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Sequence[slice], options: AttentionOptions
    ) -> Tensor:
        """Returns the output as (1, tokens, heads, head_dim), the layout that transformers expects."""
        ctx.save_for_backward(query, key, value)
        ctx.rows, ctx.options = rows, options
        ctx.seed = int(torch.randint(2**32, (), device="cpu")) if options.dropout else 0
        parts, (buffer,), dropout = _plan(ctx, query, num_buffers=1)
        output = torch.zeros_like(query.transpose(1, 2))
        for number, chunk in enumerate(parts):
            q, k, v = _inputs_of(chunk, query, key, value)
            probs = _softmax(q * options.scale, k, buffer, chunk.visible)
            if dropout:
                probs.mul_(dropout.mask(number, probs.shape))
                v = v * dropout.scale
            output[0, chunk.queries, chunk.heads] = torch.bmm(probs, v).transpose(0, 1)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of query, key and value."""
        query, key, value = ctx.saved_tensors
        parts, (buffer, scratch, grad_buffer), dropout = _plan(ctx, query, num_buffers=3)
        grad_query = torch.zeros_like(query)
        grad_key, grad_value = (torch.zeros_like(one, dtype=torch.float32) for one in (key, value))
        for number, chunk in enumerate(parts):
            q, k, v = _inputs_of(chunk, query, key, value)
            q = q * ctx.options.scale
            grad = grad_outputs[0][0, chunk.queries, chunk.heads].transpose(0, 1)
            grad = grad.to(q.dtype) * (dropout.scale if dropout else 1)
            probs = dropped_probs = _softmax(q, k, buffer, chunk.visible)
            grad_probs = torch.bmm(grad, v.transpose(1, 2), out=_view(grad_buffer, probs.shape))
            if dropout:
                mask = dropout.mask(number, probs.shape)
                dropped_probs = torch.mul(probs, mask, out=_view(scratch, probs.shape))
                grad_probs.mul_(mask)
            chunk.add_to_keys(grad_value, torch.bmm(dropped_probs.transpose(1, 2), grad))
            backward = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001 - has no public name
            grad_scores = backward(grad_probs, probs, -1, probs.dtype, grad_input=_view(scratch, probs.shape))
            grad_query[0, chunk.heads, chunk.queries] = torch.bmm(grad_scores, k) * ctx.options.scale
            chunk.add_to_keys(grad_key, torch.bmm(grad_scores.transpose(1, 2), q))
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _plan(ctx: Any, query: Tensor, num_buffers: int) -> tuple[list[Block], list[Tensor], DropoutPool | None]:
    """Returns the chunks, buffers that each hold the probabilities of any chunk, and the dropout masks, if any."""
    parts = list(chunks(ctx.rows, query.shape[1], ctx.options.window))
    sizes = [(part.heads.stop - part.heads.start) * part.num_pairs for part in parts]
    buffers = [query.new_empty(max(sizes, default=0)) for _ in range(num_buffers)]
    dropout = ctx.options.dropout
    return parts, buffers, new_dropout_pool(dropout, ctx.seed, query, sizes) if dropout else None


def _inputs_of(chunk: Block, *states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the chunk's queries, keys and values, contiguous in memory."""
    query, key, value = (one[0, chunk.heads] for one in states)
    return (
        query[:, chunk.queries].contiguous(),
        chunk.keys_of(key, 1).contiguous(),
        chunk.keys_of(value, 1).contiguous(),
    )


def _softmax(query: Tensor, key: Tensor, buffer: Tensor, visible: Tensor | None) -> Tensor:
    """Returns softmax(query keyᵀ) over the visible keys, in `buffer`."""
    scores = _view(buffer, torch.Size((len(query), query.shape[1], key.shape[1])))
    torch.bmm(query, key.transpose(1, 2), out=scores)
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    return torch.softmax(scores, -1, out=scores)


def _view(buffer: Tensor, shape: torch.Size) -> Tensor:
    return buffer[: shape.numel()].view(shape)
