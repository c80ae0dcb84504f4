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
            table = stretched_table(trained, extension)
        case "spaced":
            table = spaced_table(trained, num_positions, extension.alpha)
        case "averaged":
            table = averaged_table(trained, num_positions)
        case "repeat-last":
            table = torch.cat([trained, trained[-1:].expand(num_positions - len(trained), -1)])
        case "reflected":
            table = reflected_table(trained, num_positions)
        case _:
            assert_never(extension.initialisation)
    return table


def hierarchical_table(
    trained: Float[Tensor, "n width"], num_positions: int, alpha: float
) -> Float[Tensor, "positions width"]:
    """Returns the hierarchical decomposition of `trained`, whose n rows come first, unchanged.

    q[i*n + j] = p[j] + alpha / (1 - alpha) * (p[i] - p[0]), Su (2020), in closed form. alpha = 0 repeats `trained`.
    """
    p = trained.double()
    new = _new_rows(p, p, alpha / (1 - alpha), num_positions)
    return torch.cat([trained[:num_positions], new.to(trained.dtype)])


def spaced_table(
    trained: Float[Tensor, "n width"], num_positions: int, alpha: float
) -> Float[Tensor, "positions width"]:
    """Returns `trained` followed by blocks that differ by offsets taken from evenly spaced trained rows.

    Example: 512 rows p extended to 1536, which are 3 blocks. Row 6 of block 2 is

        q[1030] = p[6] + alpha / (1 - alpha) * (p[342] - p[1])        where 342 = 1 + 2 * 512 // 3

    The hierarchical offsets come from neighbouring rows, which are nearly equal; these rows are at the largest possible
    distance from each other. Of n blocks, the last two share row n-1.
    """
    p, num_blocks = trained.double(), -(-num_positions // len(trained))
    codes = p[(1 + torch.arange(num_blocks) * len(p) // num_blocks).clamp(max=len(p) - 1)]
    return torch.cat([trained, _new_rows(p, codes, alpha / (1 - alpha), num_positions).to(trained.dtype)])


def averaged_table(trained: Float[Tensor, "n width"], num_positions: int) -> Float[Tensor, "positions width"]:
    """Returns `trained` followed by blocks that differ by offsets between means of trained rows.

    Example: 512 rows p extended to 1536, which are 3 blocks. Block i is represented by the mean c[i] of the 64 rows in
    the middle of the i-th third of p, c[0] of rows 53 to 116 and c[2] of rows 394 to 457. Row 6 of block 2 is

        q[1030] = p[6] + c[2] - c[0]

    A mean keeps what neighbouring rows share and averages out the rest. Row 0 is in no mean.
    """
    p, n, num_blocks = trained.double(), len(trained), -(-num_positions // len(trained))
    num_rows = max(1, n // 8)
    middles = (2 * torch.arange(num_blocks) + 1) * n  # in units of half a row / num_blocks
    first = ((middles - num_rows * num_blocks) // (2 * num_blocks)).clamp(1, n - num_rows)
    codes = p.unfold(0, num_rows, 1)[first].mean(-1)
    return torch.cat([trained, _new_rows(p, codes, 1.0, num_positions).to(trained.dtype)])


def _new_rows(
    p: Float[Tensor, "n width"], codes: Float[Tensor, "blocks width"], weight: float, num_positions: int
) -> Float[Tensor, "new width"]:
    """Returns the rows from position n on: row i*n + j is p[j] + weight * (codes[i] - codes[0])."""
    positions = torch.arange(len(p), num_positions)
    return p[positions % len(p)] + weight * (codes[positions // len(p)] - codes[0])


def stretched_table(trained: Float[Tensor, "n width"], extension: Extension) -> Float[Tensor, "positions width"]:
    """Returns a table in which the smooth part of `trained` is stretched and the rest repeated; row 0 stays unchanged.

    Example: 512 rows p extended to 1536 with smooth_terms = 4. The smooth part s of p is its projection on the cosines
    of 0, 1, 2 and 3 half waves over the 512 positions, and has values between them too. With amplitude = 1, row
    1030 = 2 * 512 + 6 has the rest of row 6 and the smooth part from two thirds of the way:

        q[1030] = p[6] - s(6) + s(343)        where 343 = (1030 + 1/2) * 512 / 1536 - 1/2

    amplitude multiplies the difference between q and the mean of p. Row 0 belongs to [CLS] and is unlike the others:
    the computation uses row 1 in its place. keep_first_block keeps rows 0 to 511.

    Raises PositionsError for more cosines than trained rows.
    """
    n, num_positions, num_terms = len(trained), extension.num_positions, extension.smooth_terms
    if num_terms > n:
        raise PositionsError(f"smooth_terms = {num_terms}: {n} trained positions have {n} at most")
    p = torch.cat([trained[1:2], trained[1:]]).double()
    short, long = _cosines(n, num_terms), _cosines(num_positions, num_terms)
    coefficients = short.T @ p / short.square().sum(0).unsqueeze(1)
    mean, rest = coefficients[0], p - short @ coefficients
    deviation = rest[torch.arange(num_positions) % n] + long @ coefficients - mean
    num_kept = n if extension.keep_first_block else 1
    new = mean + extension.amplitude * deviation[num_kept:]
    return torch.cat([trained[:num_kept], new.to(trained.dtype)])


def _cosines(num_positions: int, num_terms: int) -> Float[Tensor, "positions terms"]:
    """Returns cosines of 0, 1, 2 ... half waves over the positions, the basis of the DCT-II; they are orthogonal."""
    middles = (torch.arange(num_positions, dtype=torch.float64) + 0.5) / num_positions
    return (torch.pi * middles.unsqueeze(1) * torch.arange(num_terms)).cos()


def reflected_table(trained: Float[Tensor, "n width"], num_positions: int) -> Float[Tensor, "positions width"]:
    """Returns `trained` followed by its rows n-1 to 1, 1 to n-1, n-1 to 1 and so on."""
    both_ways = torch.cat([trained[1:], trained[1:].flip(0)])
    return torch.cat([trained[:1], both_ways[torch.arange(num_positions - 1) % len(both_ways)]])


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
