"""Compares training steps of a model that attends within a window with those of the same model with full attention.

One row per step, in bf16, forward and backward pass with dropout 0.1. With a window, tokens per second should be the
same at all lengths. The peer is longmlm's own full attention, whose time per token grows with the row length; on a CPU
the peak memory of both grows linearly.

    python benchmarks/window_attention.py [--quick]
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paired import Comparison, Way, run
from steps import BASE, SMALL, Shape, random_batch

from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window

WINDOW = Window(each_side=256, num_global=1)
SELECTED = 7  # one token in seven
AIMS = {1024: 1.0, 2048: 1.0, 4096: 1.5, 8192: 2.5}


def training(shape: Shape, window: Window | None) -> Callable[[], int]:
    """Returns a function that runs one step, forward and backward, after one warm-up step."""
    model = shape.roberta()
    use_window(model, window)
    use_packed_attention(model)
    objective = MlmObjective(model, "bf16").train()
    batch = random_batch(objective, 1, shape.row_length, -(-shape.row_length // SELECTED))

    def step() -> int:
        (objective(batch)["mlm"].loss_sum / len(batch.labels)).backward()
        return shape.row_length

    step()
    return step


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    model = f"{shape.name} ({shape.num_layers} x {shape.width}), 1 x {shape.row_length} tokens"
    label = f"{model}, window of {WINDOW.each_side} on each side, {WINDOW.num_global} global, dropout 0.1, bf16"
    own, peer = Way("window", partial(training, shape, WINDOW)), Way("full attention", partial(training, shape, None))
    return Comparison(label, own, peer, AIMS[shape.row_length])


if __name__ == "__main__":
    lengths = (8192, 4096, 2048, 1024)
    full = [comparison(replace(BASE, vocabulary=8192, row_length=length)) for length in lengths]
    quick = [comparison(replace(SMALL, num_layers=2, row_length=length)) for length in lengths[1:]]
    run("window attention", __doc__ or "", full, quick)
