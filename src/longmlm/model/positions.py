"""A trained position table to a longer one."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from longmlm.errors import PositionsError
from longmlm.settings.extend import Initialisation


def hierarchical_table(
    base: Float[Tensor, "n width"], num_positions: int, alpha: float
) -> Float[Tensor, "positions width"]:
    """Returns `base` stretched to `num_positions` rows, the first n of them unchanged.

    q[i*n + j] = p[j] + alpha / (1 - alpha) * (p[i] - p[0]), Su (2020), in closed form, for at most n * n
    rows: two digits in base n cannot address more.
    """
    n = len(base)
    wide = base.double()
    place = torch.arange(n, num_positions)
    new = wide[place % n] + alpha / (1 - alpha) * (wide[place // n] - wide[0])
    return torch.cat([base[:num_positions], new.to(base.dtype)])


def random_table(base: Float[Tensor, "n width"], num_positions: int, seed: int) -> Float[Tensor, "positions width"]:
    """Returns `base` followed by normal rows with the mean and standard deviation of its own rows 1 to n-1."""
    generator = torch.Generator().manual_seed(seed)
    trained = base[1:].float()
    noise = torch.randn(max(0, num_positions - len(base)), base.shape[1], generator=generator)
    new = trained.mean(0) + noise * trained.std(0)
    return torch.cat([base[:num_positions], new.to(base.dtype)])


def interpolated_table(base: Float[Tensor, "n width"], num_positions: int) -> Float[Tensor, "positions width"]:
    """Returns `base` drawn out linearly to `num_positions` rows, its first and last at the ends; all others change."""
    place = torch.linspace(0, len(base) - 1, num_positions, dtype=torch.float64)
    below = place.floor().long().clamp(max=len(base) - 2)
    share = (place - below).unsqueeze(1)
    wide = base.double()
    return ((1 - share) * wide[below] + share * wide[below + 1]).to(base.dtype)


def sinusoidal_table(num_positions: int, width: int, deviation: float) -> Float[Tensor, "positions width"]:
    """Returns sines and cosines of geometric wavelengths (Vaswani et al. 2017, 3.5) of a standard deviation.

    An untrained model begins with them: distances are linear in them, so it need not learn them position by position.
    """
    wavelengths = 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1) / wavelengths
    table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]
    return (deviation * 2**0.5 * table).float()


def extended_table(
    base: Float[Tensor, "n width"], num_positions: int, initialisation: Initialisation, alpha: float, seed: int
) -> Float[Tensor, "positions width"]:
    """Returns `base`, the trained rows without reserved ones, stretched to `num_positions` rows.

    Raises PositionsError when the table would not grow, or beyond n * n rows.
    """
    if num_positions <= len(base):
        raise PositionsError(f"num_positions = {num_positions}: the model has {len(base)} positions already")
    if num_positions > len(base) ** 2:
        raise PositionsError(
            f"{num_positions} positions: {len(base)} trained ones can be stretched to {len(base) ** 2} at the most"
        )
    match initialisation:
        case "hierarchical":
            return hierarchical_table(base, num_positions, alpha)
        case "tile":
            return hierarchical_table(base, num_positions, alpha=0.0)
        case "random":
            return random_table(base, num_positions, seed)
        case "interpolate":
            return interpolated_table(base, num_positions)
        case _:
            assert_never(initialisation)
