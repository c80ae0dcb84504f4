"""Measures variants of a training step that longmlm does without, on RoBERTa-base in bf16 with dropout 0.1, on a CPU.

    PYTHONPATH=benchmarks python docs/experiments/scripts/variants.py

Compares steps of one row, in eager mode and with torch.compile for the feed-forward part of each layer or for whole
layers: on rows of 1536 tokens, then on rows whose lengths differ, as those of FULL-SENTENCES do. Each length has been
seen once before it is timed. Compares one matrix product for queries, keys and values with three, forward and backward,
and prints how long it takes to cast all weights of the layers to bf16.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from steps import BASE, own_step
from torch import Tensor, nn

from longmlm.model.architecture import architecture_of

Compiled = Literal["nothing", "feed-forward", "layers"]
SAME, DIFFERENT = (1536,) * 4, (1536, 1400, 1300, 1200, 1111, 1000, 900, 801)
NUM_ROUNDS = 7


def tokens_per_second(compiled: Compiled, lengths: Sequence[int]) -> float:
    """Returns the median speed over rows of these lengths, each of which one step has seen before."""
    model = BASE.roberta()
    for layer in cast(Any, architecture_of(model).layers):
        if compiled == "feed-forward":
            layer.feed_forward_chunk = torch.compile(layer.feed_forward_chunk)
        elif compiled == "layers":
            layer.forward = torch.compile(layer.forward)
    by_length = {length: own_step(replace(BASE, row_length=length), model) for length in {*lengths}}
    for step in by_length.values():
        step()
    return statistics.median(length / seconds(by_length[length]) for length in lengths)


def seconds(work: Callable[[], object]) -> float:
    """Returns how long the work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_milliseconds(work: Callable[[], object]) -> float:
    """Returns the median time of the work after one run that is not timed."""
    work()
    return 1000 * statistics.median(seconds(work) for _ in range(NUM_ROUNDS))


def projections(sizes: Sequence[int]) -> Callable[[], None]:
    """Returns forward and backward passes of projections of 1536 tokens to these numbers of features."""
    states = torch.randn(1536, BASE.width, requires_grad=True)
    layers = [nn.Linear(BASE.width, size) for size in sizes]

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = [layer(states) for layer in layers]
        torch.stack([output.float().sum() for output in outputs]).sum().backward()

    return work


def casts() -> Callable[[], list[Tensor]]:
    """Returns the cast of all weights of the layers to bf16."""
    matrices = [parameter for parameter in architecture_of(BASE.roberta()).layers.parameters() if parameter.ndim > 1]
    return lambda: [matrix.bfloat16() for matrix in matrices]


if __name__ == "__main__":
    kinds: tuple[Compiled, ...] = ("nothing", "feed-forward", "layers")
    for (name, lengths), kind in itertools.product({"same": SAME, "different": DIFFERENT}.items(), kinds):
        print(f"{name} lengths, compiled: {kind}: {tokens_per_second(kind, lengths):,.0f} tokens/s", flush=True)
    for name, sizes in {"three projections": (BASE.width,) * 3, "one projection": (3 * BASE.width,)}.items():
        print(f"{name}: {median_milliseconds(projections(sizes)):.1f} ms")
    print(f"casts of all weights: {median_milliseconds(casts()):.1f} ms")
