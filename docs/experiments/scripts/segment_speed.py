"""Compares the speed of training steps on long rows: chunks, a cached segment, windows and full attention, on a CPU.

    PYTHONPATH=benchmarks python docs/experiments/scripts/segment_speed.py

One row per step, forward and backward pass of four layers as in RoBERTa-base, in bf16 without dropout, every way in a
process of its own.
Chunks and the cached segment read 512 positions at a time (segments.py); windows have 256 tokens on each side and one
global token.
"""

from collections.abc import Callable
from functools import partial

import torch
from paired import Comparison, Way
from segments import Kind, SegmentObjective
from steps import BASE, roberta_config
from transformers import RobertaForMaskedLM
from window_attention import SELECTED, WINDOW

from longmlm.batches.collate import MlmBatch
from longmlm.model.architecture import set_dropout
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window

NUM_LAYERS, NUM_POSITIONS, VOCABULARY, NUM_ROUNDS = 4, 512, 8192, 3


def step(row_length: int, new_objective: Callable[[], MlmObjective]) -> Callable[[], int]:
    """Returns a function that runs one step, forward and backward, after one warm-up step."""
    torch.manual_seed(0)
    objective = new_objective().train()
    tokens = torch.randint(300, 8000, (1, row_length))
    selected = torch.arange(1, row_length - 1, SELECTED)
    batch = MlmBatch(tokens, None, selected, tokens.flatten()[selected], row_lengths=(row_length,))

    def work() -> int:
        (objective(batch)["mlm"].loss_sum / len(selected)).backward()
        return row_length

    work()
    return work


def model(num_positions: int) -> RobertaForMaskedLM:
    """Returns an untrained RoBERTa without dropout."""
    found = RobertaForMaskedLM(roberta_config(NUM_LAYERS, BASE.width, VOCABULARY, num_positions))
    set_dropout(found, 0)
    return found


def in_segments(kind: Kind) -> MlmObjective:
    """Returns an objective that reads NUM_POSITIONS tokens at a time."""
    with torch.no_grad():
        return SegmentObjective(model(NUM_POSITIONS), "bf16", kind)


def in_one(num_positions: int, window: Window | None) -> MlmObjective:
    """Returns an objective that reads the row as a whole."""
    long = model(num_positions)
    use_window(long, window)
    use_packed_attention(long)
    return MlmObjective(long, "bf16")


def comparisons(row_length: int) -> list[Comparison]:
    """Returns the comparisons of chunks with a cached segment, and of windows with full attention."""
    ways = [
        Way("cached segment, biases for distances", partial(step, row_length, partial(in_segments, "transformer-xl"))),
        Way("chunks", partial(step, row_length, partial(in_segments, "chunks"))),
        Way("window", partial(step, row_length, partial(in_one, row_length, WINDOW))),
        Way("full attention", partial(step, row_length, partial(in_one, row_length, None))),
    ]
    shape = f"RoBERTa ({NUM_LAYERS} x {BASE.width}), 1 x {row_length} tokens, bf16"
    return [Comparison(shape, ours, peer) for ours, peer in (ways[:2], ways[2:])]


if __name__ == "__main__":
    for length in (2048, 4096, 8192):
        for comparison in comparisons(length):
            comparison.measure(NUM_ROUNDS)
