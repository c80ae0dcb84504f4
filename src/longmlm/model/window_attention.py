"""Sliding-window attention with global tokens: time and memory grow linearly with the length of a row.

torch's attention runs on one block of queries at a time, with the keys in their window and the global ones. For
training on a CPU, `ChunkedAttention` computes the blocks, which takes half the time and keeps no copies of the keys. On
a GPU without dropout, FlexAttention skips keys that no query sees. Where the window covers the row, attention is full.

A model and the modules of its layers have their window as an attribute, since config.json is to stay stock.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast, no_type_check

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from longmlm.errors import ModelError
from longmlm.model.architecture import layers_of
from longmlm.model.families import LEARNED_FAMILIES, check_local_layers
from longmlm.model.packed_attention import (
    AttentionOptions,
    ChunkedAttention,
    attention_name,
    by_row,
    can_use_packed_attention,
    packed_attention,
)
from longmlm.model.window import Window

NAME = "longmlm-window"  # in transformers' registry
WINDOW = "longmlm_window"  # attribute of an encoder, and of its layers' modules; None in a layer with full attention
FLEX_BLOCK = 128
MAX_VARIANTS = 64  # of the compiled kernel: beyond torch's limit of 8, it would compute all scores


def use_window(model: PreTrainedModel, window: Window | None) -> None:
    """Makes the model attend within the window, or leaves it as it is if there is none.

    Raises ModelError for models other than encoders with a learned position table and, for local layers, for models
    with too few or shared layers.
    """
    if window is None:
        return
    if not can_use_packed_attention(model.config):
        *others, last = LEARNED_FAMILIES
        families = f"{', '.join(others)} and {last}"
        raise ModelError(f"attention_window is for {families} models, not for {model.config.model_type}: remove it")
    if window.num_layers is not None:
        check_local_layers(window.num_layers, model.config)
    encoder = cast(PreTrainedModel, model.base_model)
    setattr(encoder, WINDOW, window)
    for number, layer in enumerate(layers_of(encoder)):
        for module in layer.modules():
            setattr(module, WINDOW, window if window.is_local(number) else None)
    AttentionInterface.register(NAME, _attention_of_layer)
    AttentionMaskInterface.register(NAME, _padding_mask)
    model.set_attn_implementation(NAME)
    if attention_name(model) != NAME:  # transformers only warns
        raise ModelError(
            f"transformers cannot change the attention of this {type(model).__name__}, and the model needs a window: "
            "install transformers anew, with its source files"
        )


def _padding_mask(*, attention_mask: Tensor | None, **_: object) -> Tensor | None:
    """Returns the 2-D padding mask unchanged (True for tokens); transformers would expand it to 4-D."""
    return attention_mask


def window_of(model: PreTrainedModel) -> Window | None:
    """Returns the window of a model; None for full attention."""
    return getattr(model.base_model, WINDOW, None) if attention_name(model) == NAME else None


def layers_by_window(model: PreTrainedModel) -> dict[Window | None, int]:
    """Returns how many layers of a model attend within a window, and how many (None) to whole rows."""
    window, num_layers = window_of(model), model.config.num_hidden_layers
    num_local = min(num_layers, window.num_layers or num_layers) if window else 0
    return {one: number for one, number in ((window, num_local), (None, num_layers - num_local)) if number}


@contextmanager
def attending_within(model: PreTrainedModel, window: Window | None) -> Iterator[None]:
    """Makes the model attend within the window, if there is one, until the block ends."""
    before, window_before = attention_name(model), window_of(model)
    use_window(model, window)
    try:
        yield
    finally:
        if window:
            model.set_attn_implementation(before)
            use_window(model, window_before)


def _attention_of_layer(module: nn.Module, *states: Any, **options: Any) -> tuple[Tensor, None]:
    return window_attention(module, *states, window=getattr(module, WINDOW, None), **options)


def window_attention(
    module: object,
    query: Float[Tensor, "rows heads length head_dim"],
    key: Float[Tensor, "rows heads length head_dim"],
    value: Float[Tensor, "rows heads length head_dim"],
    attention_mask: Tensor | None,
    *,
    window: Window | None,
    **options: Any,
) -> tuple[Float[Tensor, "rows length heads head_dim"], None]:
    """Computes attention within the window, if there is one, in the form that transformers expects.

    In a packed batch it stays within a row, whose own first tokens are global; see `packed_attention`. Raises
    ModelError for a mask other than a padding mask.
    """
    packed_rows = options.pop("packed_rows", None)
    if attention_mask is not None and attention_mask.ndim != query.ndim - 2:
        raise ModelError("a model with a window takes an attention mask of shape (rows, tokens) only")
    if window is None or (packed_rows is None and window.covers(query.shape[2])):
        mask = None if attention_mask is None else attention_mask[:, None, None, :].expand(-1, 1, query.shape[2], -1)
        return packed_attention(module, query, key, value, mask, packed_rows, **options)
    dropout, scale = options.get("dropout", 0.0), options.get("scaling") or query.shape[-1] ** -0.5
    own, is_trained = AttentionOptions(dropout, scale, window), torch.is_grad_enabled() and query.requires_grad
    is_in_chunks = query.device.type == "cpu" and (dropout or is_trained)
    if packed_rows and is_in_chunks:
        return ChunkedAttention.apply(query, key, value, packed_rows.slices, own), None
    if packed_rows:

        def attend(*rows: Tensor) -> Tensor:
            q, k, v = (one.transpose(1, 2) for one in rows[:3])
            return window_attention(module, q, k, v, rows[3], window=window, **options)[0]

        tokens = [one[0].transpose(0, 1) for one in (query, key, value)]
        return by_row(packed_rows.lengths, tokens, attend).unsqueeze(0), None
    if is_in_chunks:
        lengths = _row_lengths(attention_mask, query)
        if lengths is not None:
            return chunk_by_chunk(query, key, value, lengths, own), None
    if query.device.type == "cpu" or dropout or query.shape[2] <= FLEX_BLOCK:  # a single block would be compiled anew
        output = block_by_block(query, key, value, attention_mask, own)
    else:
        mask = flex_mask(window, attention_mask, query)
        output = _compiled_flex_attention()(query, key, value, block_mask=mask, scale=scale)
    return output.transpose(1, 2).contiguous(), None


def chunk_by_chunk(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], options: AttentionOptions
) -> Float[Tensor, "rows length heads head_dim"]:
    """Returns attention computed by `ChunkedAttention`; zero at padding, which is at the end of rows."""
    num_rows, num_heads, longest, head_dim = query.shape
    rows = [slice(row * longest, row * longest + length) for row, length in enumerate(lengths)]
    line = (one.transpose(0, 1).reshape(1, num_heads, num_rows * longest, head_dim) for one in (query, key, value))
    return ChunkedAttention.apply(*line, rows, options).view(num_rows, longest, num_heads, head_dim)


def _row_lengths(mask: Bool[Tensor, "rows length"] | None, query: Tensor) -> list[int] | None:
    """Returns the number of tokens in each row, or None if the mask hides anything but padding at the end of a row."""
    num_rows, _, length, _ = query.shape
    if mask is None:
        return [length] * num_rows
    lengths = mask.sum(1)
    is_token = torch.arange(length, device=mask.device) < lengths.unsqueeze(1)
    return lengths.tolist() if torch.equal(mask, is_token) else None


def block_by_block(
    query: Tensor, key: Tensor, value: Tensor, is_token: Tensor | None, options: AttentionOptions
) -> Float[Tensor, "rows heads length head_dim"]:
    """Returns attention computed for one block of queries at a time.

    Every token sees itself, so that no query is without keys; the output of padding has no meaning.
    """
    index, outputs = torch.arange(query.shape[2], device=query.device), []
    for block in cast(Window, options.window).blocks(query.shape[2], query.device):
        visible = block.visible
        if is_token is not None:
            is_itself = index[block.queries, None] == block.keys_of(index, 0)
            shown = block.keys_of(is_token, 1)[:, None, None, :] | is_itself
            visible = shown if visible is None else shown & visible
        states = query[:, :, block.queries], block.keys_of(key, 2), block.keys_of(value, 2)
        dropout, scale = options.dropout, options.scale
        outputs.append(scaled_dot_product_attention(*states, attn_mask=visible, dropout_p=dropout, scale=scale))
    return torch.cat(outputs, 2)


def flex_mask(window: Window, is_token: Tensor | None, query: Tensor) -> BlockMask:
    """Returns FlexAttention's mask; only blocks of tokens within reach of each other are computed.

    Every token sees itself, as in `block_by_block`.
    """
    rows, _, length, _ = query.shape
    num_blocks = -(-length // FLEX_BLOCK)
    first = FLEX_BLOCK * torch.arange(num_blocks, device=query.device)
    is_near = (first[:, None] - first).abs() < window.each_side + FLEX_BLOCK
    is_needed = is_near | (first[:, None] < window.num_global) | (first < window.num_global)
    num_needed, order = is_needed.sum(-1), is_needed.int().argsort(dim=-1, descending=True, stable=True)
    tokens = torch.ones(rows, length, dtype=torch.bool, device=query.device) if is_token is None else is_token
    tokens = torch.nn.functional.pad(tokens, (0, num_blocks * FLEX_BLOCK - length))

    @no_type_check  # FlexAttention compiles it
    def sees(row: Tensor, _head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        is_shown = tokens[row, key_index] | (query_index == key_index)
        return is_shown & window.sees(query_index, key_index)

    shape = (rows, 1, num_blocks)
    return BlockMask.from_kv_blocks(
        num_needed.int().expand(shape).contiguous(),
        order.int().expand(*shape, num_blocks).contiguous(),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=sees,
        seq_lengths=(length, length),
    )


@functools.cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    limits = torch._dynamo.config  # noqa: SLF001 - has no public name
    with_variants = limits.patch(recompile_limit=max(limits.recompile_limit, MAX_VARIANTS))  # in each call only
    return cast(Callable[..., Tensor], with_variants(torch.compile(flex_attention)))
