"""The stretched position table, against its formula written out number by number."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.artifacts.provenance import Extension
from longmlm.errors import PositionsError
from longmlm.model.position_table import extended_table
from tests.support.tiny import tiny_extension

WIDTH = 3
Table = list[list[float]]

sizes = st.integers(2, 14).flatmap(lambda n: st.tuples(st.just(n), st.integers(n + 1, n * n)))


def trained_rows(n: int, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    """Returns a table whose first row is far from the others, as in trained models."""
    table = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[0] += 7
    return table


def settings_of(initialisation: str, num_positions: int, **more: object) -> Extension:
    return tiny_extension("base", num_positions, initialisation=initialisation, **more)


def stretch(base: torch.Tensor, num_positions: int, num_terms: int) -> torch.Tensor:
    return extended_table(base, settings_of("stretched", num_positions, smooth_terms=num_terms))


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


def assert_is(table: torch.Tensor, expected: Table) -> None:
    assert table.shape == (len(expected), WIDTH)
    assert (table - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-10


@settings(deadline=None, max_examples=80)
@given(size=sizes, terms=st.integers(1, 14), seed=st.integers(0, 99))
def test_stretched_is_its_formula(size: tuple[int, int], terms: int, seed: int) -> None:
    n, num_positions = size
    base, terms = trained_rows(n, seed=seed), min(terms, n)
    assert_is(stretch(base, num_positions, terms), naive_stretched(base.tolist(), num_positions, terms))


def test_the_worked_example() -> None:
    p = trained_rows(512)
    waves = torch.stack([torch.cos(torch.pi * t * (torch.arange(512.0).double() + 0.5) / 512) for t in range(4)], 1)
    copied = torch.cat([p[1:2], p[1:]])
    smooth = waves @ torch.linalg.lstsq(waves, copied).solution
    assert torch.allclose(stretch(p, 1536, 4)[1030], p[6] - smooth[6] + smooth[343], atol=1e-10)


def test_lengths_out_of_reach_are_refused() -> None:
    base = trained_rows(5)
    for num_positions in (5, 26):
        with pytest.raises(PositionsError, match=f"num_positions = {num_positions}: "):
            stretch(base, num_positions, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stretched_changes_all_trained_rows_but_the_first(dtype: torch.dtype) -> None:
    base = trained_rows(32).cumsum(0).to(dtype)
    table = stretch(base, 96, 4)
    assert table.dtype == dtype
    assert torch.equal(table[0], base[0])
    assert (table[1:32] != base[1:]).any(dim=1).all()


def test_row_0_has_no_influence_on_other_rows() -> None:
    base, other = trained_rows(16), trained_rows(16)
    other[0] -= 100
    one, two = (stretch(rows, 48, 2) for rows in (base, other))
    assert (one != two).any(dim=1).nonzero().flatten().tolist() == [0]


@pytest.mark.parametrize(("n", "num_positions"), [(2, 3), (8, 20), (16, 48), (16, 256)])
def test_one_cosine_repeats_the_rows(n: int, num_positions: int) -> None:
    base = trained_rows(n)
    copied = torch.cat([base[1:2], base[1:]])
    table = stretch(base, num_positions, 1)
    assert torch.allclose(table[1:], copied.repeat(n, 1)[1:num_positions], atol=1e-12)


@pytest.mark.parametrize(("n", "factor"), [(8, 3), (16, 5), (13, 7)])
def test_as_many_cosines_as_rows_stretch_the_whole_table(n: int, factor: int) -> None:
    """With an odd factor, the middle of every old position is that of a new one: the series passes through its row."""
    base = trained_rows(n)
    table = stretch(base, factor * n, n)
    middles = table[factor // 2 :: factor]
    assert torch.allclose(middles, torch.cat([base[1:2], base[1:]]), atol=1e-10)


def wave(num_positions: int, num_half_waves: int) -> torch.Tensor:
    """Returns a cosine over the positions, at the middle of each."""
    return torch.cos(torch.pi * num_half_waves * (torch.arange(num_positions).double() + 0.5) / num_positions)


def test_a_smooth_table_is_stretched_and_a_ripple_repeated() -> None:
    """The waves are mixed so that rows 0 and 1 are equal, and nothing changes when row 0 counts as row 1."""
    slow, fast = (
        (wave(64, one), wave(64, other), -wave(64, one).diff()[0] / wave(64, other).diff()[0])
        for one, other in ((1, 3), (32, 45))
    )
    smooth, ripple = (one + share * other for one, other, share in (slow, fast))
    table = stretch((smooth + ripple).unsqueeze(1), 192, 4).flatten()
    expected = wave(192, 1) + slow[2] * wave(192, 3) + ripple.repeat(3)
    assert torch.allclose(table[1:], expected[1:], atol=1e-10)
    assert smooth.std() > 0.1 and ripple.std() > 0.1


def test_what_all_rows_share_stays() -> None:
    base, shared = trained_rows(16), torch.tensor([5.0, -3.0, 0.5])
    one, shifted = (stretch(rows, 48, 4) for rows in (base, base + shared))
    assert torch.allclose(shifted, one + shared, atol=1e-12)


def test_more_cosines_than_rows_are_refused() -> None:
    base = trained_rows(6)
    assert len(stretch(base, 20, 6)) == 20
    with pytest.raises(PositionsError, match=r"smooth_terms = 7: 6 trained positions have 6 at most"):
        stretch(base, 20, 7)


def test_only_interpolate_and_stretched_change_trained_rows() -> None:
    changing = {"interpolate": True, "stretched": True, "hierarchical": False, "tile": False, "random": False}
    for initialisation, is_changing in changing.items():
        extension = settings_of(initialisation, 40)
        assert extension.changes_trained_rows == is_changing
        base = trained_rows(16)
        assert torch.equal(extended_table(base, extension)[:16], base) != is_changing
