"""Extended position tables: the published recipe, unchanged trained rows, and properties of each initialisation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.errors import PositionsError
from longmlm.model.position_table import (
    extended_table,
    hierarchical_table,
    interpolated_table,
    random_table,
    sinusoidal_table,
)
from longmlm.settings.extend import ExtendRecipe
from tests.support.tiny import tiny_extension

INITIALISATIONS = ("hierarchical", "tile", "random", "interpolate")


def trained_rows(n: int, width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Returns a table whose first row is far from the others, as in trained models."""
    table = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[0] += 7
    return table.to(dtype)


def extend(base: torch.Tensor, num_positions: int, initialisation: str, alpha: float = 0.4, seed: int = 0):
    more = {"initialisation": initialisation, "alpha": alpha, "seed": seed}
    return extended_table(base, tiny_extension("base", num_positions, **more))


def two_steps(base: torch.Tensor, num_positions: int, alpha: float) -> torch.Tensor:
    """Returns the table as published: base vectors u first, then q[i*n + j] = alpha u_i + (1 - alpha) u_j."""
    n = len(base)
    u = (base - alpha * base[0]) / (1 - alpha)
    rows = [alpha * u[position // n] + (1 - alpha) * u[position % n] for position in range(num_positions)]
    return torch.stack(rows)


def test_the_worked_example() -> None:
    p = trained_rows(512)
    assert torch.allclose(extend(p, 1536, "hierarchical")[1030], p[6] + 2 / 3 * (p[2] - p[0]), atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(n=st.integers(2, 12), alpha=st.floats(0, 0.9), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_closed_form_is_the_published_recipe(n: int, alpha: float, share: float, seed: int) -> None:
    base = trained_rows(n, seed=seed)
    num_positions = n + 1 + round(share * (n * n - n - 1))
    table = hierarchical_table(base, num_positions, alpha)
    assert table.shape == (num_positions, base.shape[1])
    largest = 1 / (1 - alpha)
    assert (table - two_steps(base, num_positions, alpha)).abs().max() < 1e-12 * max(1, largest)


def test_blocks_differ_by_the_row_of_their_index() -> None:
    base = trained_rows(5)
    blocks = hierarchical_table(base, 25, 0.4).view(5, 5, -1)
    for i in range(1, 5):
        offset = 0.4 / 0.6 * (base[i] - base[0])
        assert torch.allclose(blocks[i] - blocks[0], offset.expand(5, -1), atol=1e-12)
        assert offset.abs().max() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_alpha_zero_is_tiling(dtype: torch.dtype) -> None:
    base = trained_rows(6, dtype=dtype)
    tiled = base.repeat(6, 1)
    assert torch.equal(hierarchical_table(base, 36, 0.0), tiled)
    assert torch.equal(extend(base, 20, "tile"), tiled[:20])
    assert not torch.equal(hierarchical_table(base, 36, 0.4), tiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("initialisation", ["hierarchical", "tile", "random"])
def test_trained_rows_stay_bit_for_bit(initialisation: str, dtype: torch.dtype) -> None:
    base = trained_rows(9, dtype=dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    table = extend(base, 30, initialisation, seed=3)
    assert table.dtype == dtype
    assert table.shape == (30, base.shape[1])
    assert torch.equal(table[:9].view(bits), base.view(bits))
    assert table[9:].isfinite().all()
    assert (table[9:] != 0).any(dim=1).all()


@pytest.mark.parametrize("initialisation", ["hierarchical", "tile"])
def test_n_rows_extend_to_n_times_n_at_most(initialisation: str) -> None:
    base = trained_rows(4)
    table = extend(base, 16, initialisation, alpha=0.25)
    assert len(table) == 16
    assert len(torch.unique(table, dim=0)) == (16 if initialisation == "hierarchical" else 4)
    with pytest.raises(PositionsError, match=r"num_positions = 17: .* 16 "):
        extend(base, 17, initialisation, alpha=0.25)


@pytest.mark.parametrize("initialisation", INITIALISATIONS)
def test_a_table_that_would_not_grow_is_refused(initialisation: str) -> None:
    base = trained_rows(8)
    for num_positions in (1, 7, 8):
        with pytest.raises(PositionsError, match=f"num_positions = {num_positions}: .* 8 "):
            extend(base, num_positions, initialisation)
    assert len(extend(base, 9, initialisation)) == 9


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, -0.1, math.nan])
def test_alpha_without_a_decomposition_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        ExtendRecipe(num_positions=9, initialisation="hierarchical", alpha=alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.49, 0.51, 0.99])
def test_alpha_with_a_decomposition_is_accepted(alpha: float) -> None:
    assert ExtendRecipe(num_positions=9, initialisation="hierarchical", alpha=alpha).alpha == alpha


@pytest.mark.parametrize("num_positions", [11, 17, 19, 100])
def test_interpolation_keeps_the_ends_and_is_monotone_between(num_positions: int) -> None:
    base = trained_rows(10).abs().cumsum(0).float()
    table = interpolated_table(base, num_positions)
    assert table.shape == (num_positions, base.shape[1])
    assert torch.equal(table[0], base[0])
    assert torch.equal(table[-1], base[-1])
    assert (table.diff(dim=0) > 0).all()


def test_interpolation_goes_through_every_trained_row_where_it_can() -> None:
    base = trained_rows(10)
    table = interpolated_table(base, 28)
    assert torch.allclose(table[::3], base, atol=1e-12)
    assert torch.allclose(table[1::3], (2 * base[:-1] + base[1:]) / 3, atol=1e-12)


def test_random_rows_follow_the_seed() -> None:
    base = trained_rows(8, dtype=torch.float32)
    once, again, other = (random_table(base, 40, seed) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert (once[8:] != other[8:]).any(dim=1).all()


def test_random_rows_have_the_mean_and_spread_of_trained_rows_but_the_first() -> None:
    base = trained_rows(50, width=8)
    base[1:] *= torch.arange(1, 9)
    base[1:] += 3
    new = random_table(base.float(), 6_000, seed=0)[50:].double()
    mean, spread = base[1:].mean(0), base[1:].std(0)
    assert (spread[1:] > spread[0]).all()
    assert torch.allclose(new.std(0), spread, rtol=0.05)
    assert ((new.mean(0) - mean).abs() < 0.06 * spread).all()


def test_products_of_sinusoids_depend_on_the_distance_alone() -> None:
    table = sinusoidal_table(64, 16, deviation=0.02).double()
    products = table @ table.T
    for distance in range(64):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-9)
    assert products[0].unique().numel() == 64
    assert (products.diagonal(1)[0] - products.diagonal(20)[0]).abs() > 1e-4


@pytest.mark.parametrize("width", [16, 17, 32])
def test_sinusoids_have_the_spread_asked_for(width: int) -> None:
    table = sinusoidal_table(128, width, deviation=0.02)
    assert table.shape == (128, width)
    assert table.dtype == torch.float32
    assert float(table.square().mean().sqrt()) == pytest.approx(0.02, rel=0.05)
    assert len(torch.unique(table, dim=0)) == 128
