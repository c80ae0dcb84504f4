"""Fitted position tables: the kernels are the attention's own, and new positions attend as trained ones do."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longmlm.model import fitted_positions
from longmlm.model.fitted_positions import REACH, PositionAttention, fitted_table, kernels_by_distance
from longmlm.model.position_table import hierarchical_table, position_table_of, sinusoidal_table
from tests.support.families import tiny_model

WIDTH, N, LONG = 32, 48, 144


def local_attention(num_layers: int = 1) -> PositionAttention:
    """Returns projections of two heads that let positions attend to those with similar rows."""
    eye = torch.eye(WIDTH).reshape(WIDTH, 2, WIDTH // 2).transpose(0, 1)
    return PositionAttention((1.5 * eye,) * num_layers, (eye,) * num_layers)


def trained_table() -> Tensor:
    table = sinusoidal_table(N, WIDTH, 1.0)
    table[0] += 5
    return table


def near_share(table: Tensor, attention: PositionAttention, first: int, reach: int = 3) -> float:
    """Returns the share of attention within `reach` positions, the mean over queries from `first` on."""
    queries = torch.arange(first, len(table))
    is_near = (torch.arange(len(table)) - queries.unsqueeze(1)).abs() <= reach
    [kernel] = attention.kernels(table[queries], table)
    return float((kernel.softmax(-1) * is_near).sum(-1).mean())


def test_kernels_are_what_the_modules_of_the_layers_compute(kind: tuple[str, int]) -> None:
    model = tiny_model(*kind)
    attention = PositionAttention.of(model, 2)
    modules: dict[str, Any] = dict(model.base_model.named_modules())
    names = ("q_lin", "k_lin") if kind[0] == "distilbert" else ("query", "key")
    queries, keys = ([part for name, part in modules.items() if name.endswith(f".{end}")] for end in names)
    table = position_table_of(model)
    rows, words = table.usable_rows, modules["embeddings.word_embeddings"].weight
    deviation = (words + rows[torch.arange(len(words)) % len(rows)]).std(-1).mean()
    norm = modules["embeddings.LayerNorm"]
    embedded = (rows - rows.mean(-1, keepdim=True)) / deviation * norm.weight
    for name in ("embeddings_project", "encoder.embedding_hidden_mapping_in"):
        if isinstance(modules.get(name), nn.Linear):
            embedded = embedded @ modules[name].weight.T
    kernels = list(attention.kernels(rows[3:6], rows))
    assert len(kernels) == min(2, len(queries))
    for kernel, query, key in zip(kernels, queries, keys, strict=False):
        heads, size = model.config.num_attention_heads, len(query.weight) // model.config.num_attention_heads
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            left, right = embedded[3:6] @ query.weight[part].T, embedded @ key.weight[part].T
            assert torch.allclose(kernel[head], left @ right.T / math.sqrt(size), atol=1e-4, rtol=1e-3)


def test_goals_are_means_over_pairs_at_a_distance() -> None:
    table, attention = trained_table(), local_attention(2)
    rows = table[1:].double()
    goals = kernels_by_distance(table, attention)
    reach = int(REACH * (N - 1))
    assert [goal.shape for goal in goals] == [(2, 2 * reach + 1)] * 2
    for head in range(2):
        part = rows[:, head * WIDTH // 2 : (head + 1) * WIDTH // 2]
        kernel = 1.5 * part @ part.T
        kernel -= kernel.mean(1, keepdim=True)
        for distance in (-reach, -1, 0, 5, reach):
            pairs = [kernel[i, i + distance].item() for i in range(N - 1) if 0 <= i + distance < N - 1]
            assert goals[1][head, distance + reach].item() == pytest.approx(sum(pairs) / len(pairs), abs=1e-3)


def test_new_positions_attend_to_their_neighbours_as_trained_ones_do_and_stay_close_to_where_they_start() -> None:
    table, attention = trained_table(), local_attention()
    start = hierarchical_table(table, LONG, 0.0)
    fitted = fitted_table(table, start, attention)
    trained = near_share(table[1:], attention, 0)
    assert trained > 0.5
    assert near_share(start, attention, N) < 0.45 * trained
    assert near_share(fitted, attention, N) > 0.8 * trained
    assert 0.05 < (fitted - start)[1:].norm() / start[1:].norm() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_0_the_data_type_and_the_random_state_stay(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit is reproducible, and works where gradients are off."""
    monkeypatch.setattr(fitted_positions, "NUM_STEPS", 5)
    table = trained_table().to(dtype)
    start = hierarchical_table(table, LONG, 0.4)
    state = torch.get_rng_state()
    fitted = fitted_table(table, start, local_attention())
    with torch.no_grad():
        assert torch.equal(fitted_table(table, start, local_attention()), fitted)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(fitted_table(table, start, local_attention(), seed=1), fitted)
    assert (fitted.dtype, fitted.shape) == (dtype, start.shape)
    assert torch.equal(fitted[0], start[0]) and (fitted != start).any(1)[1:].all()
    assert not fitted.requires_grad and fitted.isfinite().all()
