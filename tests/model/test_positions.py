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
    sinusoidal_table,
    stretched_table,
)
from tests.support.tiny import tiny_extension

CHANGES_ROWS = {"hierarchical": False, "tile": False, "fitted": True, "distilled": True}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Table = list[list[float]]


def trained_rows(n: int, width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Returns a table whose first row is far from the others, as in trained models."""
    table = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[0] += 7
    return table.to(dtype)


def extend(base: torch.Tensor, num_positions: int, initialisation: str, **more: object) -> torch.Tensor:
    return extended_table(base, tiny_extension("base", num_positions, initialisation=initialisation, **more))


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
    assert (table - two_steps(base, num_positions, alpha)).abs().max() < 1e-12 * max(1, 1 / (1 - alpha))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_zero_is_tiling(dtype: torch.dtype) -> None:
    base = trained_rows(6, dtype=dtype)
    tiled = base.repeat(6, 1)
    assert torch.equal(hierarchical_table(base, 36, 0.0), tiled)
    assert torch.equal(extend(base, 20, "tile"), tiled[:20])
    assert not torch.equal(hierarchical_table(base, 36, 0.4), tiled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("initialisation", CHANGES_ROWS)
def test_trained_rows_stay_bit_for_bit_unless_it_is_said_that_they_change(
    initialisation: str, dtype: torch.dtype
) -> None:
    base = trained_rows(9, dtype=dtype)
    table = extend(base, 30, initialisation, seed=3)
    assert (table.dtype, table.shape) == (dtype, (30, base.shape[1]))
    assert torch.equal(table[:9], base) != CHANGES_ROWS[initialisation]
    assert tiny_extension("base", initialisation=initialisation).changes_trained_rows == CHANGES_ROWS[initialisation]
    assert torch.equal(table[0], base[0])
    assert table[9:].isfinite().all() and (table[9:] != 0).any(dim=1).all()


@pytest.mark.parametrize("initialisation", CHANGES_ROWS)
def test_n_rows_extend_to_more_and_to_n_times_n_at_most(initialisation: str) -> None:
    base = trained_rows(4)
    table = extend(base, 16, initialisation, alpha=0.25)
    assert len(torch.unique(table, dim=0)) == (4 if initialisation == "tile" else 16)
    for num_positions in (1, 3, 4, 17):
        limit = 16 if num_positions > 4 else 4
        with pytest.raises(PositionsError, match=f"num_positions = {num_positions}: .* {limit} "):
            extend(base, num_positions, initialisation)


@pytest.mark.parametrize("width", [16, 17, 32])
def test_sinusoids_have_the_spread_asked_for_and_products_that_depend_on_the_distance_alone(width: int) -> None:
    table = sinusoidal_table(128, width, deviation=0.02)
    assert (table.shape, table.dtype) == ((128, width), torch.float32)
    assert float(table.square().mean().sqrt()) == pytest.approx(0.02, rel=0.05)
    assert len(torch.unique(table, dim=0)) == 128
    if width % 2 == 0:
        products = table[:64].double() @ table[:64].double().T
        for distance in range(64):
            diagonal = products.diagonal(distance)
            assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-9)
        assert (products.diagonal(1)[0] - products.diagonal(20)[0]).abs() > 1e-4


def naive_stretched(base: Table, num_positions: int, num_terms: int) -> Table:
    """Returns the table column by column, with one least-squares coefficient after the other."""
    n = len(base)
    columns = []
    for column in zip(*base, strict=True):
        p = [column[1], *column[1:]]
        coefficients = []
        for t in range(num_terms):
            wave = [math.cos(math.pi * t * (x + 0.5) / n) for x in range(n)]
            products = [one * other for one, other in zip(wave, p, strict=True)]
            coefficients.append(sum(products) / sum(value * value for value in wave))

        def smooth(x: float, coefficients: list[float] = coefficients) -> float:
            return sum(c * math.cos(math.pi * t * (x + 0.5) / n) for t, c in enumerate(coefficients))

        new = [column[0]]
        for k in range(1, num_positions):
            rest = p[k % n] - smooth(k % n)
            new.append(rest + smooth((k + 0.5) * n / num_positions - 0.5))
        columns.append(new)
    return [list(row) for row in zip(*columns, strict=True)]


@settings(deadline=None, max_examples=60)
@given(n=st.integers(2, 14), share=st.floats(0, 1), terms=st.integers(1, 14), seed=st.integers(0, 99))
def test_stretched_is_its_formula(n: int, share: float, terms: int, seed: int) -> None:
    base, terms, num_positions = trained_rows(n, 3, seed), min(terms, n), n + 1 + round(share * (n * n - n - 1))
    expected = torch.tensor(naive_stretched(base.tolist(), num_positions, terms), dtype=torch.float64)
    assert torch.allclose(stretched_table(base, num_positions, terms), expected, rtol=0, atol=1e-10)


def test_the_worked_example_of_stretched() -> None:
    p = trained_rows(512)
    waves = torch.stack([torch.cos(torch.pi * t * (torch.arange(512.0).double() + 0.5) / 512) for t in range(4)], 1)
    copied = torch.cat([p[1:2], p[1:]])
    smooth = waves @ torch.linalg.lstsq(waves, copied).solution
    assert torch.allclose(stretched_table(p, 1536, 4)[1030], p[6] - smooth[6] + smooth[343], atol=1e-10)


def test_row_0_has_no_influence_on_other_rows_and_what_all_rows_share_stays() -> None:
    base, other, shared = trained_rows(16), trained_rows(16), torch.arange(6)
    other[0] -= 100
    one, two, three = (stretched_table(rows, 48, 4) for rows in (base, other, base + shared))
    assert (one != two).any(dim=1).nonzero().flatten().tolist() == [0]
    assert torch.allclose(three, one + shared, atol=1e-12)


def test_one_cosine_repeats_the_rows_and_as_many_as_rows_stretch_the_whole_table() -> None:
    """With an odd factor, the middle of every old position is that of a new one: the series passes through its row."""
    base = trained_rows(16)
    copied = torch.cat([base[1:2], base[1:]])
    assert torch.allclose(stretched_table(base, 250, 1)[1:], copied.repeat(16, 1)[1:250], atol=1e-12)
    assert torch.allclose(stretched_table(base, 80, 16)[2::5], copied, atol=1e-10)


def test_more_cosines_than_rows_are_refused() -> None:
    base = trained_rows(6)
    assert len(stretched_table(base, 20, 6)) == 20
    with pytest.raises(PositionsError, match=r"smooth_terms = 7: 6 trained positions have 6 at most"):
        stretched_table(base, 20, 7)
