"""Position tables: a trained one extended to more rows, and sinusoids for an untrained model."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from longmlm.artifacts.provenance import Extension
from longmlm.errors import PositionsError
from longmlm.model.families import check_num_positions


def extended_table(trained: Float[Tensor, "n width"], extension: Extension) -> Float[Tensor, "positions width"]:
    """Returns the `trained` rows, without reserved ones, extended to `extension.num_positions` rows.

    Example: n = 512 rows p extended hierarchically. Position 1030 = 2 * 512 + 6 has offset 6 in block 2. Its row is

        q[1030] = p[6] + alpha / (1 - alpha) * (p[2] - p[0])

    With alpha = 0.4, that is the trained row of the offset plus 2/3 of the difference between rows 2 and 0. In block 0
    the difference is zero: the first 512 rows stay as they were trained. The last block with a row of its own is 511,
    so 512 * 512 rows are the limit.

    Raises PositionsError unless n < num_positions <= n * n.
    """
    num_positions = extension.num_positions
    check_num_positions(len(trained), num_positions)
    match extension.initialisation:
        case "hierarchical":
            table = hierarchical_table(trained, num_positions, extension.alpha)
        case "tile":
            table = hierarchical_table(trained, num_positions, alpha=0.0)
        case "random":
            table = random_table(trained, num_positions, extension.seed)
        case "interpolate":
            table = interpolated_table(trained, num_positions)
        case "stretched" | "fitted":
            table = stretched_table(trained, num_positions, extension.smooth_terms)
        case _:
            assert_never(extension.initialisation)
    return table


def hierarchical_table(
    trained: Float[Tensor, "n width"], num_positions: int, alpha: float
) -> Float[Tensor, "positions width"]:
    """Returns the hierarchical decomposition of `trained`, whose n rows come first, unchanged.

    q[i*n + j] = p[j] + alpha / (1 - alpha) * (p[i] - p[0]), Su (2020), in closed form. alpha = 0 repeats `trained`.
    """
    p, positions = trained.double(), torch.arange(len(trained), num_positions)
    new = p[positions % len(p)] + alpha / (1 - alpha) * (p[positions // len(p)] - p[0])
    return torch.cat([trained[:num_positions], new.to(trained.dtype)])


def stretched_table(
    trained: Float[Tensor, "n width"], num_positions: int, smooth_terms: int
) -> Float[Tensor, "positions width"]:
    """Returns a table in which the smooth part of `trained` is stretched and the rest repeated; row 0 stays unchanged.

    Example: 512 rows p extended to 1536 with smooth_terms = 4. The smooth part s of p is its projection on the cosines
    of 0, 1, 2 and 3 half waves over the 512 positions, and has values between them too. Row 1030 = 2 * 512 + 6 has the
    rest of row 6 and the smooth part from two thirds of the way:

        q[1030] = p[6] - s(6) + s(343)        where 343 = (1030 + 1/2) * 512 / 1536 - 1/2

    Row 0 belongs to [CLS] and is unlike the others: the computation uses row 1 in its place.

    Raises PositionsError for more cosines than trained rows.
    """
    n = len(trained)
    if smooth_terms > n:
        raise PositionsError(f"smooth_terms = {smooth_terms}: {n} trained positions have {n} at most")
    p = torch.cat([trained[1:2], trained[1:]]).double()
    short, long = _cosines(n, smooth_terms), _cosines(num_positions, smooth_terms)
    coefficients = short.T @ p / short.square().sum(0).unsqueeze(1)
    mean, rest = coefficients[0], p - short @ coefficients
    deviation = rest[torch.arange(num_positions) % n] + long @ coefficients - mean
    new = mean + deviation[1:]
    return torch.cat([trained[:1], new.to(trained.dtype)])


def _cosines(num_positions: int, num_terms: int) -> Float[Tensor, "positions terms"]:
    """Returns cosines of 0, 1, 2 ... half waves over the positions, the basis of the DCT-II; they are orthogonal."""
    middles = (torch.arange(num_positions, dtype=torch.float64) + 0.5) / num_positions
    return (torch.pi * middles.unsqueeze(1) * torch.arange(num_terms)).cos()


def random_table(trained: Float[Tensor, "n width"], num_positions: int, seed: int) -> Float[Tensor, "positions width"]:
    """Returns `trained` followed by normal rows with the mean and standard deviation of its rows 1 to n-1."""
    generator = torch.Generator().manual_seed(seed)
    rows = trained[1:].float()
    noise = torch.randn(max(0, num_positions - len(trained)), trained.shape[1], generator=generator)
    new = rows.mean(0) + noise * rows.std(0)
    return torch.cat([trained[:num_positions], new.to(trained.dtype)])


def interpolated_table(trained: Float[Tensor, "n width"], num_positions: int) -> Float[Tensor, "positions width"]:
    """Returns `trained` linearly interpolated to `num_positions` rows: only its first and last row stay unchanged."""
    offsets = torch.linspace(0, len(trained) - 1, num_positions, dtype=torch.float64)
    below = offsets.floor().long().clamp(max=len(trained) - 2)
    weight = (offsets - below).unsqueeze(1)
    p = trained.double()
    return ((1 - weight) * p[below] + weight * p[below + 1]).to(trained.dtype)


def sinusoidal_table(num_positions: int, width: int, deviation: float) -> Float[Tensor, "positions width"]:
    """Returns sines and cosines of geometric wavelengths (Vaswani et al. 2017, 3.5) with a given standard deviation.

    An untrained model starts with them: their dot products depend on distances only, which need not be learned then.
    """
    wavelengths = 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1) / wavelengths
    table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]
    return (deviation * 2**0.5 * table).float()
