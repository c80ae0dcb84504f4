"""Position tables that the study of initialisations compared, and that longmlm does not offer.

    python docs/experiments/scripts/tables.py MODEL OUTPUT --table averaged --num-positions 1536

writes MODEL with such a table, as a stock model of 1536 positions. To train it on the rows and masks of the others, set
model = "OUTPUT" and extension = false in a copy of their pipeline. Tables: random, interpolate, stretched (from
which the fit of fitted positions starts), spaced, averaged, repeat-last, reflected, loud (stretched, each row 1.4 times
as far from the mean row), and NAME-kept, which keeps the trained rows of NAME.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from longmlm.folders import new_folder
from longmlm.model.carried import save_model
from longmlm.model.extension import with_positions
from longmlm.model.loading import load_model
from longmlm.model.position_table import position_table_of, stretched_table
from longmlm.settings.extend import SMOOTH_TERMS

Rows = Float[Tensor, "rows width"]
ALPHA, LOUD = 0.4, 1.4


def random(trained: Rows, num_positions: int) -> Rows:
    """Returns `trained` followed by normal rows with the mean and standard deviation of its rows 1 to n-1."""
    rows = trained[1:].float()
    size = num_positions - len(trained), trained.shape[1]
    new = rows.mean(0) + torch.randn(size, generator=torch.Generator().manual_seed(0)) * rows.std(0)
    return torch.cat([trained, new.to(trained.dtype)])


def interpolate(trained: Rows, num_positions: int) -> Rows:
    """Returns `trained` linearly interpolated to `num_positions` rows: only its first and last row stay unchanged."""
    offsets = torch.linspace(0, len(trained) - 1, num_positions, dtype=torch.float64)
    below = offsets.floor().long().clamp(max=len(trained) - 2)
    weight = (offsets - below).unsqueeze(1)
    p = trained.double()
    return ((1 - weight) * p[below] + weight * p[below + 1]).to(trained.dtype)


def stretched(trained: Rows, num_positions: int) -> Rows:
    """Returns the table that the fit of fitted positions starts from."""
    return stretched_table(trained, num_positions, SMOOTH_TERMS)


def with_offsets(trained: Rows, codes: Rows, weight: float, num_positions: int) -> Rows:
    """Returns the trained rows p, and row i*n + j = p[j] + weight * (codes[i] - codes[0]) from position n on."""
    p, positions = trained.double(), torch.arange(len(trained), num_positions)
    new = p[positions % len(p)] + weight * (codes[positions // len(p)] - codes[0])
    return torch.cat([trained, new.to(trained.dtype)])


def spaced(trained: Rows, num_positions: int) -> Rows:
    """Returns blocks that differ by offsets of evenly spaced trained rows, not of neighbouring ones.

    Example: 512 rows p, 1536 positions. q[1030] = p[6] + 2/3 * (p[342] - p[1]), where 342 = 1 + 2 * 512 // 3.
    """
    p, num_blocks = trained.double(), -(-num_positions // len(trained))
    codes = p[(1 + torch.arange(num_blocks) * len(p) // num_blocks).clamp(max=len(p) - 1)]
    return with_offsets(trained, codes, ALPHA / (1 - ALPHA), num_positions)


def averaged(trained: Rows, num_positions: int) -> Rows:
    """Returns blocks that differ by offsets between means of trained rows.

    Example: 512 rows p, 1536 positions: c[i] is the mean of the 64 rows in the middle of the i-th third of p.
    q[1030] = p[6] + c[2] - c[0]
    """
    p, n, num_blocks = trained.double(), len(trained), -(-num_positions // len(trained))
    num_rows = max(1, n // 8)
    middles = (2 * torch.arange(num_blocks) + 1) * n  # in units of half a row / num_blocks
    first = ((middles - num_rows * num_blocks) // (2 * num_blocks)).clamp(1, n - num_rows)
    return with_offsets(trained, p.unfold(0, num_rows, 1)[first].mean(-1), 1.0, num_positions)


def repeat_last(trained: Rows, num_positions: int) -> Rows:
    """Returns `trained` followed by its last row."""
    return torch.cat([trained, trained[-1:].expand(num_positions - len(trained), -1)])


def reflected(trained: Rows, num_positions: int) -> Rows:
    """Returns `trained` followed by its rows n-1 to 1, 1 to n-1 and so on."""
    both_ways = torch.cat([trained[1:], trained[1:].flip(0)])
    return torch.cat([trained[:1], both_ways[torch.arange(num_positions - 1) % len(both_ways)]])


def loud(trained: Rows, num_positions: int, smooth_terms: int = SMOOTH_TERMS, amplitude: float = LOUD) -> Rows:
    """Returns the stretched table with each row's difference from the mean row multiplied by `amplitude`."""
    table = stretched_table(trained, num_positions, smooth_terms)
    mean = torch.cat([trained[1:2], trained[1:]]).mean(0)
    return torch.cat([table[:1], mean + amplitude * (table[1:] - mean)])


TABLES: Mapping[str, Callable[[Rows, int], Rows]] = {
    "random": random,
    "interpolate": interpolate,
    "stretched": stretched,
    "spaced": spaced,
    "averaged": averaged,
    "repeat-last": repeat_last,
    "reflected": reflected,
    "loud": loud,
}


def kept(trained: Rows, table: Rows) -> Rows:
    """Returns a table with the trained rows in its first block."""
    return torch.cat([trained, table[len(trained) :]])


def write(options: argparse.Namespace) -> None:
    """Writes the model with the table."""
    base = load_model(options.model)
    trained = position_table_of(base.model).usable_rows
    name = options.table.removesuffix("-kept")
    table = TABLES[name](trained, options.num_positions)
    long = with_positions(base, kept(trained, table) if options.table != name else table)
    with new_folder(options.output) as partial:
        save_model(long.model, long.tokenizer, long.carried, partial)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--table", required=True, choices=[*TABLES, *(f"{name}-kept" for name in TABLES)])
    parser.add_argument("--num-positions", type=int, required=True)
    write(parser.parse_args())
