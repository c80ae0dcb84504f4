"""Attention over packed rows: torch's values and gradients, dropout that keeps the mean, memory linear in length."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row
from longmlm.model import packed_attention as module
from longmlm.model.architecture import set_dropout
from longmlm.model.families import LEARNED_FAMILIES
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import (
    ATTENTION_NAME,
    AttentionOptions,
    ChunkedAttention,
    PackedRows,
    attention_name,
    chunks,
    jagged_attention,
    new_dropout_pool,
    packed_attention,
    use_packed_attention,
)
from longmlm.settings.pretrain import ComputePrecision
from tests.support.families import tiny_model

NUM_HEADS, LENGTH, WIDTH = 3, 12, 4
LENGTHS = [12, 5, 1]
SCALE = 0.3


def states_of(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Returns queries, keys and values of three packed rows, in transformers' layout."""
    generator = torch.Generator().manual_seed(1)
    shape = (1, sum(LENGTHS), NUM_HEADS, WIDTH)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def packed(lengths: list[int]) -> PackedRows:
    return PackedRows(tuple(lengths), torch.tensor([0, *np.cumsum(lengths)]))


def reference(states: list[Tensor]) -> Tensor:
    """Returns the attention written as its formula, with a mask that separates the rows."""
    query, key, value = states
    row = torch.repeat_interleave(torch.tensor(LENGTHS))
    scores = (SCALE * query @ key.transpose(2, 3)).masked_fill(row != row.unsqueeze(1), -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def in_chunks(states: list[Tensor], dropout: float = 0.0) -> Tensor:
    return ChunkedAttention.apply(*states, packed(LENGTHS).slices, AttentionOptions(dropout, SCALE))


def row_by_row(states: list[Tensor]) -> Tensor:
    return packed_attention(None, *states, None, packed(LENGTHS), scaling=SCALE)[0]


def nested(states: list[Tensor]) -> Tensor:
    return jagged_attention(*states, packed(LENGTHS), 0.0, SCALE)


WAYS = [*((in_chunks, size) for size in (1, 7, 12 * 5, 12 * 12, 3 * 12 * 12, 10**6)), (row_by_row, 1), (nested, 1)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("attend", "max_chunk"), WAYS)
def test_values_and_gradients_are_those_of_the_formula_within_each_row(
    attend: Callable[[list[Tensor]], Tensor], max_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHUNK", max_chunk)
    outputs, gradients = [], []
    for function in (reference, attend):
        states = states_of()
        output = function(states)
        (output.cos() * torch.arange(WIDTH)).sum().backward()
        outputs.append(output.detach())
        gradients.append([state.grad for state in states])
    torch.testing.assert_close(outputs[1], outputs[0])
    for ours, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)  # sums are fp32


@pytest.mark.parametrize("max_chunk", [1, 50, 12 * 12, 10**6])
@pytest.mark.parametrize("lengths", [[12, 5, 1], [40], [3] * 7])
def test_chunks_cover_all_pairs_once_and_are_small(
    max_chunk: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHUNK", max_chunk)
    seen = np.zeros((NUM_HEADS, sum(lengths)), dtype=int)
    rows = [slice(begin, end) for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]
    for part in chunks(rows, NUM_HEADS):
        queries, (keys,) = part.queries, part.keys
        seen[part.heads, queries] += 1
        length = keys.stop - keys.start
        num_heads = part.heads.stop - part.heads.start
        assert num_heads * part.num_pairs == seen[part.heads, queries].size * length <= max(max_chunk, length)
        assert keys in rows and keys.start <= queries.start < queries.stop <= keys.stop
    assert (seen == 1).all()


def test_a_row_of_1536_takes_one_chunk_per_head_and_a_short_row_takes_one() -> None:
    found = [(part.heads, part.queries, part.keys) for part in chunks(packed([1536, 400]).slices, 12)]
    long, short = slice(0, 1536), slice(1536, 1936)
    assert found == [*((slice(one, one + 1), long, (long,)) for one in range(12)), (slice(0, 12), short, (short,))]


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_gradients_belong_to_the_values_with_dropout(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHUNK", 60)

    def with_fixed_seed(*states: Tensor) -> Tensor:
        torch.manual_seed(5)
        return in_chunks(list(states), dropout)

    states = [state.detach().clone().requires_grad_() for state in states_of()]
    assert torch.autograd.gradcheck(with_fixed_seed, states, atol=1e-4, rtol=1e-3, fast_mode=True)


def test_dropout_keeps_the_mean_and_drops_the_requested_share() -> None:
    torch.manual_seed(2)
    states = [state.detach() for state in states_of()]
    draws = torch.stack([in_chunks(states, 0.3) for _ in range(1000)])
    errors = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - reference(states)).abs() <= 5 * errors + 1e-12).all()
    dropout = new_dropout_pool(0.3, 7, torch.empty(0), [50_000])
    kept = dropout.mask(0, torch.Size((50_000,)))
    assert set(kept.tolist()) == {0.0, 1.0}
    assert 1 - kept.mean().item() == pytest.approx(0.3, abs=5 * (0.21 / len(kept)) ** 0.5)
    assert dropout.scale == pytest.approx(1 / 0.7, abs=1e-4)
    assert in_chunks(states, 1 - 1e-9).isfinite().all()


def test_neighbouring_draws_are_independent() -> None:
    dropout = new_dropout_pool(0.1, 3, torch.empty(0), [400_000])
    dropped = 1 - dropout.pool
    for distance in (1, 2, 3, 4, 1536):
        both = (dropped[:-distance] * dropped[distance:]).mean().item()
        assert both == pytest.approx(0.01, abs=5 * (0.01 / len(dropped)) ** 0.5)


@pytest.mark.parametrize("sizes", [[5, 3, 8], [1], [2**20, 2**20]])
def test_masks_of_a_small_call_do_not_overlap(sizes: list[int]) -> None:
    dropout = new_dropout_pool(0.1, 3, torch.empty(0), sizes)
    ends = [begin + size for begin, size in zip(dropout.begins, sizes, strict=True)]
    assert dropout.begins == [0, *ends[:-1]]
    assert ends[-1] == sum(sizes) <= len(dropout.pool)


def test_masks_of_a_large_call_start_at_random_places_of_a_bounded_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_POOL", 100)
    dropout = new_dropout_pool(0.1, 3, torch.empty(0), [80] * 50)
    assert len(dropout.pool) == 160
    assert len({*dropout.begins}) > 20
    assert 0 <= min(dropout.begins) < 20
    assert 60 < max(dropout.begins) <= 80


def test_each_call_draws_new_dropout_a_seed_repeats_it_and_nothing_is_drawn_without_dropout() -> None:
    states = [state.detach() for state in states_of()]
    torch.manual_seed(4)
    first, second = in_chunks(states, 0.2), in_chunks(states, 0.2)
    torch.manual_seed(4)
    assert torch.equal(in_chunks(states, 0.2), first)
    assert not torch.equal(first, second)
    before = torch.get_rng_state()
    for dtype in (torch.float32, torch.bfloat16):
        packed_attention(None, *states_of(dtype), None, packed(LENGTHS), scaling=SCALE)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("spread", [1.0, 4.0, 16.0])
def test_bf16_is_as_exact_as_eager_attention_under_autocast(spread: float) -> None:
    generator = torch.Generator().manual_seed(9)
    states = [torch.randn(1, 2, 256, 32, generator=generator, dtype=torch.float64) for _ in range(3)]
    states[0] *= spread / 32**0.5
    exact = (states[0] @ states[1].transpose(2, 3)).softmax(-1) @ states[2]
    query, key, value = (state.bfloat16() for state in states)
    eager = (query @ key.transpose(2, 3)).float().softmax(-1).bfloat16() @ value
    options = AttentionOptions(1e-12, 1.0)  # a dropout that drops nothing
    ours = ChunkedAttention.apply(query, key, value, [slice(0, 256)], options).transpose(1, 2)
    errors = [(output - exact).norm().item() for output in (ours, eager)]
    assert errors[0] < 1.3 * errors[1]


def test_memory_saved_for_backward_is_linear_in_length() -> None:
    kept = []
    for length in (64, 128):
        states = [torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3)]
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, to=sizes: to.append(one.numel()), lambda one: one):
            ChunkedAttention.apply(*states, [slice(0, length)], AttentionOptions(0.1, 1.0))
        kept.append(sum(sizes))
    assert kept[1] == 2 * kept[0] > 0


def batch_of(lengths: list[int], is_packed: bool) -> MlmBatch:
    generator = np.random.default_rng(3)
    rows = []
    for length in lengths:
        tokens, selected = generator.integers(5, 290, length), np.arange(0, length, 2)
        rows.append(MaskedRow(Row(tokens, np.array([1]), np.array([0])), selected, tokens[selected]))
    return collate(rows, None if is_packed else 1)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 1e-12])  # the second drops nothing, in chunks
def test_packed_batches_give_the_losses_and_gradients_of_padded_ones_with_stock_attention(
    kind: tuple[str, int], dropout: float, precision: ComputePrecision
) -> None:
    lengths, losses, gradients = [16, 3, 9, 16, 1], [], []
    for is_ours in (False, True):
        model = tiny_model(*kind).train()
        if is_ours:
            use_packed_attention(model)
        objective = MlmObjective(model, precision)
        assert objective.reads_packed_batches == is_ours
        set_dropout(objective, dropout if is_ours else 0.0)
        batch = batch_of(lengths, is_ours)
        assert batch.num_with_padding == (sum(lengths) if is_ours else max(lengths) * len(lengths))
        objective(batch)["mlm"].loss_sum.backward()
        losses.append(objective.predict(batch).losses.detach())
        gradients.append(torch.cat([one.grad.flatten() for one in objective.parameters() if one.grad is not None]))
    close = {"rtol": 1e-4, "atol": 1e-4} if precision == "no" else {"rtol": 0.05, "atol": 0.1}
    torch.testing.assert_close(losses[1], losses[0], **close)
    assert (gradients[1] - gradients[0]).norm() < (1e-4 if precision == "no" else 0.1) * gradients[0].norm()


def test_rows_of_a_packed_batch_do_not_influence_each_other(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind).eval()
    use_packed_attention(model)
    batch = batch_of([16, 3, 9], is_packed=True)
    before = MlmObjective(model).predict(batch).losses
    batch.input_ids[0, 16:19] = torch.tensor([50, 51, 52])
    is_changed = (MlmObjective(model).predict(batch).losses != before).tolist()
    assert is_changed == [False] * 8 + [True] * 2 + [False] * 5


def test_recomputed_layers_draw_the_same_dropout() -> None:
    gradients = []
    for is_recomputed in (False, True):
        model = tiny_model("roberta", 1).train()
        use_packed_attention(model)
        objective = MlmObjective(model)
        set_dropout(objective, 0.2)
        if is_recomputed:
            checkpoint_activations(objective.model)
        torch.manual_seed(8)
        objective(batch_of([16, 9], is_packed=True))["mlm"].loss_sum.backward()
        gradients.append([one.grad for one in objective.parameters() if one.grad is not None])
    assert len(gradients[0]) > 15
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_only_encoders_of_known_families_with_sdpa_use_packed_attention(any_kind: tuple[str, int]) -> None:
    """A saved config does not name it."""
    for name, is_decoder in (("sdpa", False), ("sdpa", True), ("eager", False)):
        model = tiny_model(*any_kind)
        is_learned = any_kind[0] in LEARNED_FAMILIES
        before = attention_name(model) if name == "sdpa" and not is_learned else name
        model.set_attn_implementation(before)
        model.config.is_decoder = is_decoder
        use_packed_attention(model)
        is_ours = is_learned and name == "sdpa" and not is_decoder
        assert attention_name(model) == (ATTENTION_NAME if is_ours else before)
        assert ATTENTION_NAME not in str(model.config.to_dict())
