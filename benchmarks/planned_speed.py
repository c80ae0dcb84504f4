"""The tokens/s that `longmlm plan` measures in a few seconds, compared with those of training steps, on this CPU.

`ratio` is planned divided by trained: the aim is a factor of 1.5 in either direction.

    python benchmarks/planned_speed.py [--quick]
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paired import Comparison, Way, result, run
from steps import BASE, SMALL, Shape, ours

from longmlm.model.cost import CPU_TOKENS, Work
from longmlm.planning.speed import cpu_tokens_per_second
from longmlm.settings.masking import Masking

FACTOR = 1.5


def planned(shape: Shape) -> Callable[[], float]:
    """Returns the plan's measurement."""
    work = Work(shape.row_length, Masking().selected_fraction, is_half=True)
    return lambda: cpu_tokens_per_second(shape.without_weights(), work, shape.dropout)


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for micro-batches of this shape, as training cuts them on a CPU."""
    shape = replace(shape, num_rows=max(1, CPU_TOKENS // shape.row_length))
    own, peer = Way("planned", partial(planned, shape), result), Way("trained", partial(ours, shape))
    return Comparison(shape.label, own, peer, aim=1 / FACTOR, max_ratio=FACTOR)


if __name__ == "__main__":
    shapes = [replace(BASE, row_length=1536), replace(BASE, row_length=512), replace(SMALL, row_length=384)]
    full = [comparison(replace(shape, dropout=dropout)) for shape in shapes for dropout in (0.1, 0.0)]
    run("planned speed", __doc__ or "", full, [comparison(replace(SMALL, row_length=384))])
