"""Sliding-window attention: equals a dense mask, equals full attention where the window covers the row, is linear."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from longmlm.batches.collate import MlmBatch
from longmlm.errors import ModelError
from longmlm.model import packed_attention
from longmlm.model.architecture import set_dropout
from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import AttentionOptions, use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import (
    attending_within,
    block_by_block,
    chunk_by_chunk,
    flex_mask,
    use_window,
    window_attention,
    window_of,
)
from tests.support.families import tiny_model

SCALE = 0.3
NOTHING = 1e-12  # a dropout that drops nothing, but takes the way of dropout
WINDOWS = [Window(1, 0), Window(5, 1), Window(3, 4), Window(70, 2), Window(2, 200)]


def states_of(num_rows: int, length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Returns queries, keys and values of two heads, in transformers' layout."""
    generator = torch.Generator().manual_seed(1)
    shape = (num_rows, length, 2, 16)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def dense_mask(window: Window, length: int) -> Tensor:
    """Returns which tokens attend to which, pair by pair, written independently of the code under test."""
    mask = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        mask[query, max(0, query - window.each_side) : query + window.each_side + 1] = True
    mask[: window.num_global] = True
    mask[:, : window.num_global] = True
    return mask


def dense(states: list[Tensor], window: Window, is_token: Tensor) -> Tensor:
    """Returns the attention written as its formula; padding attends to itself alone."""
    query, key, value = states
    visible = dense_mask(window, query.shape[2]) & is_token[:, None, None, :]
    visible = visible | torch.eye(query.shape[2], dtype=torch.bool)
    scores = (SCALE * query @ key.transpose(2, 3)).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ value


def blocks(states: list[Tensor], is_token: Tensor | None, window: Window) -> Tensor:
    return block_by_block(*states, is_token, AttentionOptions(0.0, SCALE, window))


def tokens_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def results(states: list[Tensor], output: Tensor, is_token: Tensor) -> list[Tensor]:
    """Returns the output at tokens and the gradients of a function of it."""
    shown = output * is_token[:, None, :, None]
    (shown.cos() * torch.arange(16)).sum().backward()
    return [shown.detach(), *(state.grad for state in states if state.grad is not None)]


HOLES = torch.rand(3, 80, generator=torch.Generator().manual_seed(2)) < 0.5  # padding may be anywhere
HOLES[1, :40] = False


@pytest.mark.parametrize(
    "is_token", [*map(tokens_of, ([150], [150, 90, 1], [7, 3])), HOLES], ids=["full", "padded", "short", "holes"]
)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_values_and_gradients_are_those_of_a_dense_mask(
    window: Window, is_token: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "MAX_CHUNK", 20_000)
    lengths, options = is_token.sum(1).tolist(), AttentionOptions(NOTHING, SCALE, window)
    ways = [
        lambda states: dense(states, window, is_token),
        lambda states: blocks(states, None if is_token.all() else is_token, window),
        lambda states: chunk_by_chunk(*states, lengths, options).transpose(1, 2),
    ]
    found = []
    for attend in ways[:2] if is_token is HOLES else ways:
        states = states_of(*is_token.shape)
        found.append(results(states, attend(states), is_token))
    for ours in found[1:]:
        torch.testing.assert_close(ours, found[0], rtol=1e-5, atol=1e-6)  # chunks add up gradients in fp32


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("length", [1, 5, 64, 150, 333])
def test_blocks_hold_every_query_once_and_no_key_that_none_sees(window: Window, length: int) -> None:
    seen = torch.zeros(length, length, dtype=torch.int)
    for block in window.blocks(length, torch.device("cpu")):
        keys = block.keys_of(torch.arange(length), 0)
        visible = torch.ones(1, len(keys), dtype=torch.bool) if block.visible is None else block.visible
        assert visible.any(0).all()
        seen[block.queries, keys] += visible.int()
        assert keys.unique().numel() == keys.numel()
    assert torch.equal(seen, dense_mask(window, length).int())
    assert window.covers(length) == bool(dense_mask(window, length).all())
    assert (dense_mask(window, length).sum(1)[window.num_global :] <= window.num_attended(length)).all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("lengths", [[300], [300, 130, 1]])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_flex_attention_gets_the_same_mask(window: Window, lengths: list[int]) -> None:
    is_token, shown = tokens_of(lengths), tokens_of(lengths)[:, None, :, None]
    query, key, value = (state.detach() for state in states_of(len(lengths), max(lengths), torch.float32))
    mask = flex_mask(window, None if is_token.all() else is_token, query)
    ours = flex_attention(query, key, value, block_mask=mask, scale=SCALE)
    expected = blocks([query, key, value], is_token, window)
    torch.testing.assert_close(ours * shown, expected * shown, rtol=1e-4, atol=1e-5)


def test_flex_attention_computes_a_number_of_blocks_that_is_linear_in_the_length() -> None:
    counts = []
    for length in (2048, 4096, 8192):
        mask = flex_mask(Window(256, 1), None, torch.empty(1, 1, length, 1))
        counts.append(int(mask.kv_num_blocks.sum()))
        assert int(mask.kv_num_blocks[0, 0, 1:].max()) == 2 * 256 // 128 + 1 + 1
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_gradients_belong_to_the_values_with_dropout(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "MAX_CHUNK", 900)

    def with_fixed_seed(*states: Tensor) -> Tensor:
        torch.manual_seed(5)
        return chunk_by_chunk(*states, [70, 9], AttentionOptions(dropout, SCALE, Window(2, 1)))[:, ::9]

    states = [state.detach()[..., :2].clone().requires_grad_() for state in states_of(2, 70)]
    assert torch.autograd.gradcheck(with_fixed_seed, states, atol=1e-4, rtol=1e-3, fast_mode=True)


class Sizes(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, list | tuple) else [result]
        self.largest = max([self.largest, *(one.numel() for one in found if isinstance(one, Tensor))])
        return result


def peak_of(length: int, dropout: float) -> tuple[int, int]:
    """Returns the numbers saved for the backward pass, and in the largest tensor, of attention with a window of 64."""
    states = [torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3)]
    window, kept = Window(64, 1), {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with Sizes() as sizes, torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        window_attention(None, *states, None, window=window, dropout=dropout, scaling=1.0)[0].sum().backward()
        window_attention(None, *[one.detach() for one in states], None, window=window, scaling=1.0)
    return sum(kept.values()), sizes.largest


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_memory_is_linear_in_the_length(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "MAX_CHUNK", 4 * 64 * 64)
    monkeypatch.setattr(packed_attention, "MIN_POOL", 1024)
    kept, largest = zip(*(peak_of(length, dropout) for length in (1024, 2048, 4096)), strict=True)
    assert kept == (1024 * 192, 2048 * 192, 4096 * 192)  # query, key and value, of 2 heads x 8 numbers of 4 bytes
    assert all(size <= 128 * length for size, length in zip(largest, (1024, 2048, 4096), strict=True))


def batch_of(lengths: list[int]) -> MlmBatch:
    is_token = tokens_of(lengths)
    tokens = torch.randint(5, 290, is_token.shape, generator=torch.Generator().manual_seed(3))
    selected = is_token.flatten().nonzero().flatten()[::2]
    return MlmBatch(tokens, None if is_token.all() else is_token, selected, tokens.flatten()[selected])


def loss_and_gradients(objective: MlmObjective, batch: MlmBatch) -> list[Tensor]:
    torch.manual_seed(8)
    loss = objective(batch)["mlm"].loss_sum
    loss.backward()
    return [loss.detach(), *(one.grad for one in objective.parameters() if one.grad is not None)]


@pytest.mark.parametrize("lengths", [[16, 16], [16, 3, 9]], ids=["full", "padded"])
def test_a_window_that_covers_the_row_is_full_attention_bit_for_bit(lengths: list[int]) -> None:
    for dropout in (0.0, 0.1):
        found = []
        for window in (None, Window(15, 1)):
            objective = MlmObjective(tiny_model("roberta", 1).train())
            set_dropout(objective, dropout)
            use_window(objective.model, window)
            use_packed_attention(objective.model)
            assert window_of(objective.model) == window
            found.append(loss_and_gradients(objective, batch_of(lengths)))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("lengths", [[16, 16], [16, 3, 9]], ids=["full", "padded"])
def test_models_compute_what_eager_attention_does_with_a_dense_mask(kind: tuple[str, int], lengths: list[int]) -> None:
    window, batch = Window(3, 1), batch_of(lengths)
    ours, eager = tiny_model(*kind), tiny_model(*kind)
    use_window(ours, window)
    eager.set_attn_implementation("eager")
    is_token = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    visible = dense_mask(window, 16) & is_token.bool()[:, None, None, :] | torch.eye(16, dtype=torch.bool)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = eager(input_ids=batch.input_ids, attention_mask=added).logits
        full = eager(input_ids=batch.input_ids, attention_mask=is_token.long()).logits
    shown = is_token.bool()
    for is_trained in (False, True):  # in blocks, in chunks
        with torch.set_grad_enabled(is_trained):
            logits = ours(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits.detach()
        torch.testing.assert_close(logits[shown], expected[shown], rtol=1e-4, atol=1e-4)
        assert (logits[shown] - full[shown]).abs().max() > 0.01


def test_recomputed_layers_draw_the_same_dropout() -> None:
    kept, recomputed = (MlmObjective(tiny_model("roberta", 1).train()) for _ in range(2))
    checkpoint_activations(recomputed.model)
    for objective in (kept, recomputed):
        use_window(objective.model, Window(3, 1))
        set_dropout(objective, 0.2)
    found = [loss_and_gradients(objective, batch_of([16, 9])) for objective in (kept, recomputed)]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_only_models_with_a_learned_table_have_windows(any_kind: tuple[str, int]) -> None:
    model, is_learned = tiny_model(*any_kind), any_kind[0] in LEARNED_FAMILIES
    error = pytest.raises(ModelError, match=f"roberta, .* models, not for {any_kind[0]}: remove it")
    with nullcontext() if is_learned else error:
        use_window(model, Window(3, 1))
    assert window_of(model) == (Window(3, 1) if is_learned else None)


def test_packed_attention_does_not_replace_a_window_and_copies_keep_it() -> None:
    model, other = tiny_model("roberta", 1), tiny_model("roberta", 1)
    use_window(model, Window(4, 2))
    use_window(other, Window(40, 0))
    use_packed_attention(model)
    assert window_of(copy.deepcopy(model)) == window_of(model) == Window(4, 2)
    assert window_of(other) == Window(40, 0)
    assert "longmlm" not in str(model.config.to_dict())


@torch.no_grad()
def test_a_window_can_be_set_for_a_while() -> None:
    model, ids = tiny_model("bert", 0), batch_of([16]).input_ids
    before = model(ids).logits
    with attending_within(model, Window(2, 1)):
        assert not torch.equal(model(ids).logits, before)
        with pytest.raises(ModelError, match="shape .rows, tokens. only"):
            model(ids, attention_mask=torch.zeros(1, 1, 16, 16))
    assert torch.equal(model(ids).logits, before)
    assert window_of(model) is None
