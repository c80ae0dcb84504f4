"""Where the time of a training step of RoBERTa-base goes, and its FLOP/s compared with bf16 matrix products.

The step has a row of 1536 tokens and dropout 0.1.

`ours` is the FLOP/s of a training step by the cost model's formula, `peer` that of the fastest of some bf16 matrix
products on the same machine, `ratio` the model FLOP utilisation. `profile` has a line for each group of operations.

    python benchmarks/profile_step.py [--quick]
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from paired import NUM_ROUNDS, Comparison, Way, options, print_results, rate, result
from steps import BASE, SMALL, WARM_UP_STEPS, Shape, flop_per_token, ours, own_step
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

PRODUCTS = ((1536, 768, 3072), (2048, 2048, 2048), (4096, 4096, 4096))  # rows, inner size, columns
GROUPS = {  # parts of the names of operations, or of those that call them; the first match wins
    "optimizer and clipping": ("Optimizer", "aten::_foreach", "clip_grad"),
    "attention": ("ChunkedAttention", "attention"),
    "GELU": ("gelu",),
    "LayerNorm": ("layer_norm",),
    "dropout": ("dropout",),
    "loss": ("softmax", "nll_loss", "cross_entropy", "argmax"),
    "embeddings": ("embedding",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "casts and copies": ("aten::copy_", "aten::to", "aten::_to_copy"),
}
DECODER, REST = "decoder", "rest"


@dataclass(frozen=True, slots=True)
class Line:
    """The milliseconds of a group in one step, and its share of the step."""

    group: str
    milliseconds: float
    share: float


def matmul_peak() -> float:
    """Returns the GFLOP/s of the fastest product; each product's is the median of several runs."""
    speeds = []
    for rows, inner, columns in PRODUCTS:
        left, right = torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(inner, columns, dtype=torch.bfloat16)

        def product(left: torch.Tensor = left, right: torch.Tensor = right) -> float:
            torch.mm(left, right)
            return 2.0 * left.numel() * right.shape[1]

        product()
        speeds.append(statistics.median(rate(product) for _ in range(NUM_ROUNDS)))
    return max(speeds) / 1e9


def own_flops(shape: Shape) -> Callable[[], float]:
    """Returns a function that runs longmlm's training steps and returns their GFLOP."""
    work, per_token = ours(shape), flop_per_token(shape)
    return lambda: per_token * work() / 1e9


def profiled(shape: Shape) -> list[Line]:
    """Returns where a step's time goes, after the warm-up steps; the largest group comes first."""
    step = own_step(shape, shape.roberta())
    for _ in range(WARM_UP_STEPS):
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(shape.num_steps):
            step()
    times: Counter[str] = Counter()
    for event in recorded.events() or ():
        times[group_of(event, shape.vocabulary)] += event.self_cpu_time_total / 1e3 / shape.num_steps
    return [Line(group, time, time / times.total()) for group, time in times.most_common()]


def group_of(event: FunctionEvent, vocabulary: int) -> str:
    """Returns the group of an operation, by its name, its callers' names, and a vocabulary size in its input shapes."""
    names = list(_callers(event))
    found = next((group for group, parts in GROUPS.items() if _has(names, parts)), REST)
    is_decoder = re.search(rf"\b{vocabulary}\b", str(event.input_shapes)) is not None
    return DECODER if is_decoder and found in ("matrix products", "casts and copies", REST) else found


def _has(names: list[str], parts: tuple[str, ...]) -> bool:
    return any(part in name for name in names for part in parts)


def _callers(event: FunctionEvent | None) -> Iterator[str]:
    """Yields the name of an operation and of all that call it."""
    while event is not None:
        yield event.name
        event = event.cpu_parent


def main() -> None:
    """Measures, and prints the table and the JSON line."""
    is_quick, num_rounds = options(__doc__ or "")
    shape = SMALL if is_quick else BASE
    own = Way("longmlm, training step", partial(own_flops, shape))
    peak = Way("bf16 matrix product", lambda: matmul_peak, result)
    measured = Comparison(shape.label, own, peak, aim=0.6, unit="GFLOP/s").measure(num_rounds)
    lines = profiled(shape)
    print("\n".join(f"  {line.group:24}{line.milliseconds:>10,.1f} ms {line.share:>7.1%}" for line in lines))
    print_results("profile", [measured], profile=lines)


if __name__ == "__main__":
    main()
