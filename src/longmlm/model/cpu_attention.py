"""Attention on a CPU, computed in chunks that fit in the cache.

Example: 12 heads, two rows of 1536 and 400 tokens. A chunk holds at most 1536 x 1536 probabilities. The first row takes
12 chunks, one per head; the second takes one chunk for all 12 heads (12 x 400 x 400). Padding is skipped.

The backward pass recomputes the probabilities, so the forward pass does not save them. torch's own attention works on
all heads of the batch at once and, with dropout on a CPU, saves every probability.

Dropout draws one pool of random zeros and ones per call. Each chunk uses a slice of the pool that starts at a random
index: drawing a new mask for every chunk would take longer than the attention itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

ATTENTION_NAME = "longmlm"  # in transformers' registry
FAMILIES = frozenset({"roberta", "xlm-roberta", "camembert", "bert", "electra", "distilbert", "albert"})
MAX_CHUNK = 1536 * 1536  # probabilities; the backward pass holds three buffers of this size, in bf16 of 4.7 MB each


def use_chunked_attention(model: PreTrainedModel) -> None:
    """Sets the model's attention to `attention` below, if its family is in FAMILIES and it uses sdpa.

    Other models are unchanged.
    """
    if model.config.model_type in FAMILIES and attention_name(model) == "sdpa":
        AttentionInterface.register(ATTENTION_NAME, attention)
        AttentionMaskInterface.register(ATTENTION_NAME, _padding_mask)
        model.set_attn_implementation(ATTENTION_NAME)


def attention_name(model: PreTrainedModel) -> str:
    """Returns transformers' name for the model's attention implementation, such as sdpa."""
    return str(model.config._attn_implementation)  # noqa: SLF001 - transformers has no public getter


def _padding_mask(*, attention_mask: Tensor | None, **_: object) -> Tensor | None:
    """Returns the 2-D padding mask unchanged (True for tokens); transformers would expand it to 4-D."""
    return attention_mask


def attention(
    _module: object,
    query: Float[Tensor, "rows heads length head_dim"],
    key: Float[Tensor, "rows heads length head_dim"],
    value: Float[Tensor, "rows heads length head_dim"],
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Float[Tensor, "rows length heads head_dim"], None]:
    """Computes attention with the same result as transformers' `sdpa`.

    Works in chunks on a CPU in bf16 or with dropout, where that is faster. Uses `dropout` and `scaling` of
    transformers' options and ignores the others. `attention_mask` is 2-D (True for tokens, False for padding), or any
    mask that scaled_dot_product_attention accepts.
    """
    dropout, scale = options.get("dropout", 0.0), options.get("scaling") or query.shape[-1] ** -0.5
    is_padding_mask = attention_mask is None or attention_mask.ndim == query.ndim - 2
    if query.device.type == "cpu" and (query.dtype == torch.bfloat16 or dropout) and is_padding_mask:
        lengths = _row_lengths(attention_mask, query)
        if lengths is not None:
            return ChunkedAttention.apply(query, key, value, AttentionOptions(lengths, dropout, scale)), None
    if attention_mask is not None and is_padding_mask:
        attention_mask = attention_mask[:, None, None, :].expand(-1, 1, query.shape[2], -1)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scale
    )
    return output.transpose(1, 2).contiguous(), None


def _row_lengths(mask: Bool[Tensor, "rows length"] | None, query: Tensor) -> list[int] | None:
    """Returns the number of tokens in each row, or None if the mask hides anything but padding at the end of a row."""
    num_rows, _, length, _ = query.shape
    if mask is None:
        return [length] * num_rows
    lengths = mask.sum(1)
    is_token = torch.arange(length) < lengths.unsqueeze(1)
    return lengths.tolist() if torch.equal(mask, is_token) else None


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The number of tokens in each row, the dropout probability, and the factor that scores are multiplied by."""

    lengths: list[int]
    dropout: float
    scale: float


class Chunk(NamedTuple):
    """Some heads of a row and some of its queries, which attend to all `length` tokens of the row."""

    row: int
    heads: slice
    queries: slice
    length: int

    @property
    def num_probabilities(self) -> int:
        """Pairs of query and key, over all heads of the chunk."""
        return (self.heads.stop - self.heads.start) * (self.queries.stop - self.queries.start) * self.length


def chunks(lengths: list[int], num_heads: int) -> Iterator[Chunk]:
    """Yields chunks of at most MAX_CHUNK probabilities; a chunk has at least one query."""
    for row, length in enumerate(lengths):
        num_together = min(num_heads, max(1, MAX_CHUNK // max(1, length * length)))
        num_queries = min(length, max(1, MAX_CHUNK // max(1, length)))
        for head in range(0, num_heads, num_together):
            for begin in range(0, length, max(1, num_queries)):
                queries = slice(begin, min(length, begin + num_queries))
                yield Chunk(row, slice(head, min(num_heads, head + num_together)), queries, length)


@dataclass(frozen=True, slots=True)
class DropoutPool:
    """Random zeros and ones from which each chunk takes its dropout mask, a slice that starts at a random index.

    The same seed gives the same masks. Kept values are multiplied by `scale`, so that the expected value does not
    change.
    """

    pool: Tensor
    scale: float
    generator: torch.Generator

    def next_mask(self, shape: torch.Size) -> Tensor:
        """Returns the mask of the next chunk."""
        size = shape.numel()
        begin = int(torch.randint(len(self.pool) - size + 1, (), generator=self.generator))
        return self.pool[begin : begin + size].view(shape)


def new_dropout_pool(probability: float, seed: int, like: Tensor, max_size: int) -> DropoutPool | None:
    """Returns a pool for chunks of up to `max_size` probabilities, or None without dropout.

    `probability` is rounded to a multiple of 1/65536.
    """
    if not probability:
        return None
    generator = torch.Generator().manual_seed(seed)
    words = torch.empty((2 * max_size + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    num_dropped = min(round(probability * 2**16), 2**16 - 1)
    is_kept = words.view(torch.int16) >= num_dropped - 2**15
    return DropoutPool(is_kept.to(like.dtype), 1 / (1 - num_dropped / 2**16), generator)


class ChunkedAttention(torch.autograd.Function):
    """softmax(scale * query keyᵀ) value with dropout, chunk by chunk; the output of padding is zero."""

    @staticmethod
    # pyrefly: ignore[bad-override]  # torch declares forward with *args
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Returns the output as (rows, length, heads, head_dim), the layout that transformers expects."""
        ctx.save_for_backward(query, key, value)
        ctx.options, ctx.seed = options, int(torch.randint(2**62, ())) if options.dropout else 0
        num_rows, num_heads, length, head_dim = query.shape
        parts, (buffer, scratch) = _plan(options, query, 2)
        dropout = new_dropout_pool(options.dropout, ctx.seed, query, len(buffer))
        output = query.new_zeros(num_rows, length, num_heads, head_dim)
        for chunk in parts:
            q, k, v = _inputs_of(chunk, query, key, value)
            probs = _softmax(q * options.scale, k, buffer)
            if dropout is not None:
                probs = torch.mul(probs, dropout.next_mask(probs.shape), out=_view(scratch, probs.shape))
                v = v * dropout.scale
            output[chunk.row, chunk.queries, chunk.heads] = torch.bmm(probs, v).transpose(0, 1)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of query, key and value."""
        query, key, value = ctx.saved_tensors
        options: AttentionOptions = ctx.options
        parts, (buffer, scratch, grad_buffer) = _plan(options, query, 3)
        dropout = new_dropout_pool(options.dropout, ctx.seed, query, len(buffer))
        grad_query = torch.zeros_like(query)
        grad_key, grad_value = (torch.zeros(one.shape, dtype=torch.float32) for one in (key, value))
        for chunk in parts:
            q, k, v = _inputs_of(chunk, query, key, value)
            q = q * options.scale
            grad = grad_outputs[0][chunk.row, chunk.queries, chunk.heads].transpose(0, 1).to(q.dtype).contiguous()
            probs = _softmax(q, k, buffer)
            dropped_probs, grad_probs = probs, _view(grad_buffer, probs.shape)
            if dropout is None:
                torch.bmm(grad, v.transpose(1, 2), out=grad_probs)
            else:
                mask, grad = dropout.next_mask(probs.shape), grad * dropout.scale
                dropped_probs = torch.mul(probs, mask, out=_view(scratch, probs.shape))
                torch.bmm(grad, v.transpose(1, 2), out=grad_probs).mul_(mask)
            grad_value[chunk.row, chunk.heads, : chunk.length] += torch.bmm(dropped_probs.transpose(1, 2), grad)
            grad_scores = _softmax_backward(grad_probs, probs, scratch)
            grad_query[chunk.row, chunk.heads, chunk.queries] = torch.bmm(grad_scores, k) * options.scale
            grad_key[chunk.row, chunk.heads, : chunk.length] += torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None


def _plan(options: AttentionOptions, query: Tensor, num_buffers: int) -> tuple[list[Chunk], list[Tensor]]:
    """Returns the chunks, and buffers that hold the probabilities of any one of them."""
    parts = list(chunks(options.lengths, query.shape[1]))
    size = max((chunk.num_probabilities for chunk in parts), default=0)
    return parts, [torch.empty(size, dtype=query.dtype) for _ in range(num_buffers)]


def _inputs_of(chunk: Chunk, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a chunk's queries, keys and values, contiguous in memory."""
    tokens = slice(0, chunk.length)
    places = ((query, chunk.queries), (key, tokens), (value, tokens))
    q, k, v = (states[chunk.row, chunk.heads, where].contiguous() for states, where in places)
    return q, k, v


def _softmax(query: Tensor, key: Tensor, buffer: Tensor) -> Tensor:
    """Returns softmax(query keyᵀ), in `buffer`."""
    scores = _view(buffer, torch.Size((len(query), query.shape[1], key.shape[1])))
    torch.bmm(query, key.transpose(1, 2), out=scores)
    return torch.softmax(scores, -1, out=scores)


def _softmax_backward(grad_probs: Tensor, probs: Tensor, buffer: Tensor) -> Tensor:
    """Returns the gradient of the scores, in `buffer`."""
    backward = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001 - has no public name
    return backward(grad_probs, probs, -1, probs.dtype, grad_input=_view(buffer, probs.shape))


def _view(buffer: Tensor, shape: torch.Size) -> Tensor:
    return buffer[: shape.numel()].view(shape)
