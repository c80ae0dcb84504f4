"""Compares training steps of a model that attends within a window with those of the same model with full attention.

One row per step, in bf16, forward and backward pass with dropout 0.1. With a window, tokens per second should be the
same at all lengths. The peer is longmlm's own full attention, whose time per token grows with the row length; on a CPU
the peak memory of both grows linearly.

    python benchmarks/window_attention.py [--quick]
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from paired import Comparison, Way, run
from steps import roberta_config
from transformers import RobertaForMaskedLM

from longmlm.batches.collate import MlmBatch
from longmlm.model.mlm import MlmObjective
from longmlm.model.packed_attention import use_packed_attention
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window

WINDOW = Window(each_side=256, num_global=1)
SELECTED = 7  # every seventh token
AIMS = {1024: 1.0, 2048: 1.0, 4096: 1.5, 8192: 2.5}


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a RoBERTa model, and the length of its rows."""

    name: str
    num_layers: int
    width: int
    row_length: int

    @property
    def label(self) -> str:
        """The shape in words."""
        model = f"{self.name} ({self.num_layers} x {self.width}), 1 x {self.row_length} tokens"
        return f"{model}, window of {WINDOW.each_side} on each side, {WINDOW.num_global} global, dropout 0.1, bf16"


def training(shape: Shape, window: Window | None) -> Callable[[], int]:
    """Returns a function that runs one step, forward and backward, after one warm-up step."""
    torch.manual_seed(0)
    config = roberta_config(shape.num_layers, shape.width, 8192, shape.row_length)
    model = RobertaForMaskedLM(config)
    use_window(model, window)
    use_packed_attention(model)
    objective = MlmObjective(model, "bf16").train()
    tokens = torch.randint(300, 8000, (1, shape.row_length))
    selected = torch.arange(0, shape.row_length, SELECTED)
    row_lengths = (shape.row_length,) if objective.reads_packed_batches else ()
    batch = MlmBatch(tokens, None, selected, tokens.flatten()[selected], row_lengths=row_lengths)

    def step() -> int:
        (objective(batch).loss_sum / len(selected)).backward()
        return shape.row_length

    step()
    return step


def comparison(shape: Shape) -> Comparison:
    """Returns the comparison for this shape."""
    own, peer = Way("window", partial(training, shape, WINDOW)), Way("full attention", partial(training, shape, None))
    return Comparison(shape.label, own, peer, AIMS[shape.row_length])


if __name__ == "__main__":
    lengths = (8192, 4096, 2048, 1024)
    full = [comparison(Shape("RoBERTa-base", 12, 768, length)) for length in lengths]
    quick = [comparison(Shape("small", 2, 256, length)) for length in lengths[1:]]
    run("window attention", __doc__ or "", full, quick)
