"""Time and memory of training steps with the same number of tokens, cut into rows of 512 to 8192 tokens.

All steps are in bf16, with and without dropout. They are compared with the FLOP formula of longmlm's cost model;
training_step.py compares them with the Trainer. Su (2020) calls the cost near-linear up to 2048. `growth` in
the JSON line tests that: it holds the exponent with which the time of a row grows from the shortest length to 2048 (1
is linear, 2 quadratic), by the formula and by each measurement, and the fit of seconds per token = a + b * length over
all lengths.

    python benchmarks/growth.py [--quick]      # without --quick about 20 minutes on two cores
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from paired import QUICK_ROUNDS, Comparison, Way, options, print_results
from steps import BASE, SMALL, Shape, flop_per_token, ours

LAST = 2048  # the length up to which Su (2020) calls the cost near-linear
NEAR_LINEAR = 1.2  # the exponent up to which we call it so


@dataclass(frozen=True, slots=True)
class Growth:
    """How the cost grows with the row length: see the module's docstring.

    `quadratic_share` is the share of `b * length` in the time per token at LAST.
    """

    measured: str
    exponent: float
    is_near_linear: bool
    microseconds_per_token: float
    nanoseconds_per_token_and_length: float
    quadratic_share: float


def growth(measured: str, lengths: Sequence[int], seconds_per_token: Sequence[float]) -> Growth:
    """Returns the exponent from the shortest length, which must come first, to LAST, and the fitted line."""
    last = lengths.index(LAST)
    exponent = 1 + math.log(seconds_per_token[last] / seconds_per_token[0]) / math.log(LAST / lengths[0])
    slope, constant = np.polyfit(lengths, seconds_per_token, 1)
    share = slope * LAST / (constant + slope * LAST)
    return Growth(measured, exponent, exponent <= NEAR_LINEAR, 1e6 * constant, 1e9 * slope, share)


def comparisons(shape: Shape, lengths: Sequence[int], num_tokens: int) -> list[Comparison]:
    """Returns what to measure for each row length: without dropout, then with it."""
    shapes = [replace(shape, row_length=length, num_rows=num_tokens // length, num_steps=1) for length in lengths]
    shapes = [*(replace(one, dropout=0.0) for one in shapes), *shapes]
    return [Comparison(one.label, Way("longmlm", partial(ours, one)), None) for one in shapes]


def main() -> None:
    """Measures, and prints the growth and the JSON line."""
    is_quick, num_rounds = options(__doc__ or "", QUICK_ROUNDS)
    shape, num_tokens = (SMALL, 2048) if is_quick else (BASE, 8192)
    lengths = (512, 1024, 2048) if is_quick else (512, 1024, 1536, 2048, 4096, 8192)
    results = [comparison.measure(num_rounds) for comparison in comparisons(shape, lengths, num_tokens)]
    plain, dropped = results[: len(lengths)], results[len(lengths) :]
    flops = [flop_per_token(replace(shape, row_length=length)) for length in lengths]
    found = [
        growth(
            "FLOP formula, at the FLOP/s measured at 512 tokens",
            lengths,
            [flop / flops[0] / plain[0].ours for flop in flops],
        ),
        growth("longmlm without dropout", lengths, [1 / one.ours for one in plain]),
        growth("longmlm with dropout", lengths, [1 / one.ours for one in dropped]),
    ]
    for one in found:
        words = f"exponent {one.exponent:.2f} from {lengths[0]} to {LAST}"
        line = (
            f"{one.microseconds_per_token:,.0f} µs + {one.nanoseconds_per_token_and_length:,.0f} ns x length per token"
        )
        print(f"{one.measured}: {words}, {line}, attention {one.quadratic_share:.0%} of the time at {LAST}")
    print_results("growth", results, row_lengths=lengths, num_tokens=num_tokens, flop_per_token=flops, growth=found)


if __name__ == "__main__":
    main()
