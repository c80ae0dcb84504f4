"""The rows of training steps: drawn from three sources by their weights, and without weights.

python benchmarks/sampling.py [--quick]
"""

from collections.abc import Callable
from functools import partial

from paired import Comparison, Way, run, seconds

from longmlm.batches.sampling import global_batch, mixture_of

SOURCES = {"web": (9_000_000, 4_500_000_000), "books": (900_000, 450_000_000), "laws": (100_000, 50_000_000)}
NUM_ROWS = sum(rows for rows, _ in SOURCES.values())
ROWS_PER_STEP, SEED = 64, 42


def weighted(num_steps: int) -> Callable[[], int]:
    """Returns a function that draws the rows of all steps from the mixture."""
    mixture = mixture_of({"books": 3.0, "laws": 10.0}, SOURCES)
    assert mixture is not None

    def work() -> int:
        for step in range(num_steps):
            mixture.batch(step * ROWS_PER_STEP, ROWS_PER_STEP, SEED)
        return num_steps

    return work


def unweighted(num_steps: int) -> Callable[[], int]:
    """Returns a function that draws as many rows, each equally often."""

    def work() -> int:
        for step in range(num_steps):
            global_batch(step * ROWS_PER_STEP, ROWS_PER_STEP, NUM_ROWS, SEED)
        return num_steps

    return work


def comparison(num_steps: int) -> Comparison:
    """Returns the comparison on `num_steps` steps."""
    ours = Way("with weights", partial(weighted, num_steps), seconds)
    peer = Way("without weights", partial(unweighted, num_steps), seconds)
    return Comparison(f"{num_steps} steps of {ROWS_PER_STEP} rows of {NUM_ROWS:,}", ours, peer, unit="s")


if __name__ == "__main__":
    run("sampling", __doc__ or "", [comparison(1_000)], [comparison(100)])
