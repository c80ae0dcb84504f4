"""Attention on a CPU in pieces that stay in its cache: a few heads of one row at a time, or part of one head.

torch's own attention keeps all heads of a batch in flight, and takes a slow path that stores every probability as soon
as there is dropout. Here a piece has at most PIECE probabilities. Example: 12 heads, rows of 1536 and 400 tokens. The
first row takes 12 pieces of one head, 1536 x 1536 each; the second one piece of 12 heads, 12 x 400 x 400. Padding is
never computed. The backward pass computes the probabilities again instead of keeping them.

Dropout draws one pool of random zeros and ones per layer and call, and every piece takes as many as it needs from a
random place in it: drawing each one anew would take longer than all the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

NAME = "longmlm"
FAMILIES = frozenset({"roberta", "xlm-roberta", "camembert", "bert", "electra", "distilbert", "albert"})
PIECE = 1536 * 1536  # probabilities: in bf16, three buffers of 4.7 MB


def attend_in_pieces(model: PreTrainedModel) -> None:
    """Makes a model of a known family attend in pieces on a CPU; anywhere else it goes on as before."""
    if model.config.model_type in FAMILIES and attention_name(model) == "sdpa":
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, _mask_of_tokens)
        model.set_attn_implementation(NAME)


def attention_name(model: PreTrainedModel) -> str:
    """Returns what transformers calls the attention that the model computes with, such as sdpa."""
    return str(model.config._attn_implementation)  # noqa: SLF001 - set_attn_implementation has no counterpart


def _mask_of_tokens(*, attention_mask: Tensor | None, **_: object) -> Tensor | None:
    """Returns the mask as it is: which tokens are no padding."""
    return attention_mask


def attention(
    _module: object,
    query: Float[Tensor, "rows heads length width"],
    key: Float[Tensor, "rows heads length width"],
    value: Float[Tensor, "rows heads length width"],
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Float[Tensor, "rows length heads width"], None]:
    """Attends as transformers' `sdpa` does; in pieces where that is faster, on a CPU in bf16 or with dropout.

    The options are those of transformers' attention functions, of which dropout and scaling count. A mask is one of
    tokens, or what is added to scores.
    """
    dropout, scale = options.get("dropout", 0.0), options.get("scaling") or query.shape[-1] ** -0.5
    is_of_tokens = attention_mask is None or attention_mask.ndim == query.ndim - 2
    if query.device.type == "cpu" and (query.dtype == torch.bfloat16 or dropout) and is_of_tokens:
        lengths = _lengths(attention_mask, query)
        if lengths is not None:
            return PiecewiseAttention.apply(query, key, value, Settings(lengths, dropout, scale)), None
    if attention_mask is not None and is_of_tokens:
        attention_mask = attention_mask[:, None, None, :].expand(-1, 1, query.shape[2], -1)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scale
    )
    return output.transpose(1, 2).contiguous(), None


def _lengths(mask: Bool[Tensor, "rows length"] | None, query: Tensor) -> list[int] | None:
    """Returns the tokens of each row; None if more than padding at the end of rows is masked."""
    num_rows, _, length, _ = query.shape
    if mask is None:
        return [length] * num_rows
    lengths = mask.sum(1)
    is_token = torch.arange(length) < lengths.unsqueeze(1)
    return lengths.tolist() if torch.equal(mask, is_token) else None


@dataclass(frozen=True, slots=True)
class Settings:
    """The tokens of each row, the probability of dropout, and the factor of scores."""

    lengths: list[int]
    dropout: float
    scale: float


class Piece(NamedTuple):
    """Some heads of a row and some of its queries, which attend to all `length` tokens of the row."""

    row: int
    heads: slice
    queries: slice
    length: int


def pieces(lengths: list[int], num_heads: int) -> Iterator[Piece]:
    """Yields pieces of at most PIECE probabilities, or of a single query that has more."""
    for row, length in enumerate(lengths):
        num_together = min(num_heads, max(1, PIECE // max(1, length * length)))
        num_queries = min(length, max(1, PIECE // max(1, length)))
        for head in range(0, num_heads, num_together):
            for begin in range(0, length, num_queries):
                queries = slice(begin, min(length, begin + num_queries))
                yield Piece(row, slice(head, min(num_heads, head + num_together)), queries, length)


@dataclass(frozen=True, slots=True)
class Dropout:
    """Zeros and ones for the pieces of one call, the same again for the same seed; without dropout there are none.

    A piece takes its part of the pool from a random place. What is left is multiplied by `scale`, so that the
    expectation stays.
    """

    pool: Tensor
    scale: float
    generator: torch.Generator

    def next(self, shape: torch.Size) -> Tensor:
        """Returns the zeros and ones of the next piece."""
        size = shape.numel()
        begin = int(torch.randint(len(self.pool) - size + 1, (), generator=self.generator))
        return self.pool[begin : begin + size].view(shape)


def drawn_dropout(probability: float, seed: int, like: Tensor, largest: int) -> Dropout | None:
    """Returns the zeros and ones for pieces of up to `largest` probabilities; `probability` is rounded to 1 / 65536."""
    if not probability:
        return None
    generator = torch.Generator().manual_seed(seed)
    words = torch.empty((2 * largest + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    num_dropped = min(round(probability * 2**16), 2**16 - 1)
    kept = words.view(torch.int16) >= num_dropped - 2**15
    return Dropout(kept.to(like.dtype), 1 / (1 - num_dropped / 2**16), generator)


class PiecewiseAttention(torch.autograd.Function):
    """softmax(scale * query keyᵀ) value with dropout, by pieces; padded queries get zeros."""

    @staticmethod
    # pyrefly: ignore[bad-override]  # torch declares it with arguments of any number
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, settings: Settings) -> Tensor:
        """Returns the output with heads after positions, as transformers wants it."""
        ctx.save_for_backward(query, key, value)
        ctx.settings, ctx.seed = settings, int(torch.randint(2**62, ())) if settings.dropout else 0
        num_rows, num_heads, length, width = query.shape
        parts = list(pieces(settings.lengths, num_heads))
        scores, kept = (torch.empty(_largest(parts), dtype=query.dtype) for _ in range(2))
        drop = drawn_dropout(settings.dropout, ctx.seed, query, len(scores))
        output = query.new_zeros(num_rows, length, num_heads, width)
        for part in parts:
            own_query, own_key, own_value = _own(part, query, key, value)
            shares = _softmax(own_query * settings.scale, own_key, scores)
            if drop is not None:
                shares = torch.mul(shares, drop.next(shares.shape), out=_view(kept, shares.shape))
                own_value = own_value * drop.scale
            output[part.row, part.queries, part.heads] = torch.bmm(shares, own_value).transpose(0, 1)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of query, key and value."""
        query, key, value = ctx.saved_tensors
        settings: Settings = ctx.settings
        parts = list(pieces(settings.lengths, query.shape[1]))
        scores, other, changes = (torch.empty(_largest(parts), dtype=query.dtype) for _ in range(3))
        drop = drawn_dropout(settings.dropout, ctx.seed, query, len(scores))
        by_query = torch.zeros_like(query)
        by_key, by_value = (torch.zeros(one.shape, dtype=torch.float32) for one in (key, value))
        for part in parts:
            own_query, own_key, own_value = _own(part, query, key, value)
            own_query = own_query * settings.scale
            own = gradients[0][part.row, part.queries, part.heads].transpose(0, 1).to(query.dtype).contiguous()
            shares = _softmax(own_query, own_key, scores)
            change, used = _view(changes, shares.shape), shares
            if drop is None:
                torch.bmm(own, own_value.transpose(1, 2), out=change)
            else:
                kept, own = drop.next(shares.shape), own * drop.scale
                used = torch.mul(shares, kept, out=_view(other, shares.shape))
                torch.bmm(own, own_value.transpose(1, 2), out=change).mul_(kept)
            by_value[part.row, part.heads, : part.length] += torch.bmm(used.transpose(1, 2), own)
            change = _softmax_backward(change, shares, other)
            by_query[part.row, part.heads, part.queries] = torch.bmm(change, own_key) * settings.scale
            by_key[part.row, part.heads, : part.length] += torch.bmm(change.transpose(1, 2), own_query)
        return by_query, by_key.to(key.dtype), by_value.to(value.dtype), None


def _own(part: Piece, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a piece's queries, keys and values, each in one block of memory."""
    tokens = slice(0, part.length)
    places = ((query, part.queries), (key, tokens), (value, tokens))
    own_query, own_key, own_value = (states[part.row, part.heads, where].contiguous() for states, where in places)
    return own_query, own_key, own_value


def _softmax(query: Tensor, key: Tensor, buffer: Tensor) -> Tensor:
    """Returns the softmax of query keyᵀ, in `buffer`."""
    scores = _view(buffer, torch.Size((len(query), query.shape[1], key.shape[1])))
    torch.bmm(query, key.transpose(1, 2), out=scores)
    return torch.softmax(scores, -1, out=scores)


def _softmax_backward(gradient: Tensor, shares: Tensor, buffer: Tensor) -> Tensor:
    """Returns the gradient of the scores, in `buffer`."""
    out = _view(buffer, shares.shape)
    backward = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001 - has no public name
    return backward(gradient, shares, -1, shares.dtype, grad_input=out)


def _view(buffer: Tensor, shape: torch.Size) -> Tensor:
    return buffer[: shape.numel()].view(shape)


def _largest(parts: list[Piece]) -> int:
    sizes = [(part.heads.stop - part.heads.start) * (part.queries.stop - part.queries.start) for part in parts]
    return max((size * part.length for size, part in zip(sizes, parts, strict=True)), default=0)
