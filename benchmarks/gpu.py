"""Measures one part of longmlm on a GPU and prints JSON lines, or prints them as a table; benchmarks/gpu.sh calls it.

Without a GPU it runs small shapes on the CPU, which checks the script and measures nothing of interest.

    python benchmarks/gpu.py kernels|parity|speed|compiled|memory
    python benchmarks/gpu.py table out/gpu.jsonl
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from micro_batch_memory import CARD, Mode, rows_that_fit
from steps import BASE, LARGE, SMALL, Shape, own_step
from torch import Tensor
from torch.nn.attention import SDPBackend

from longmlm.model.architecture import architecture_of
from longmlm.model.cost import Work, cost_of, peak_flops
from longmlm.model.mlm import checkpoint_activations
from longmlm.settings.masking import Masking
from longmlm.settings.pretrain import ComputePrecision

LENGTHS, MEMORY_LENGTHS = (512, 1024, 1536, 2048), (512, 1024, 1536, 2048, 4096, 8192)
NUM_STEPS, STEP_TOKENS = 10, 24576
ALMOST_ALL = 1 - 1e-9  # of the tokens; rounded up to all of a row
SECTIONS = ("kernels", "parity", "speed", "compiled", "memory")


@dataclass(frozen=True, slots=True)
class Line:
    """A figure: the part that measured it, what was measured, and the value with its unit."""

    section: str
    case: str
    value: str


MODES = (
    Mode("fp32, head at every position", "no", ALMOST_ALL),
    Mode("fp32", "no"),
    Mode("bf16", "bf16"),
    Mode("bf16, recomputation", "bf16", is_checkpointed=True),
)


def kernels(shape: Shape, lengths: tuple[int, ...]) -> Iterator[Line]:
    """Yields the attention kernel that torch chooses for full and for padded rows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for length in lengths:
        states = torch.zeros(2, shape.width // 64, length, 64, dtype=torch.bfloat16, device=device)
        mask = (torch.arange(length, device=device) < length - 1).expand(2, 1, length, length)
        for name, used in (("full rows", None), ("padded rows", mask)):
            choice = torch._fused_sdp_choice(states, states, states, used, shape.dropout)  # noqa: SLF001 - not public
            yield Line("kernels", f"{name} of {length}", SDPBackend(choice).name.lower().replace("_", " "))


def parity(shape: Shape, lengths: tuple[int, ...]) -> Iterator[Line]:
    """Yields how far a step in bf16 is from one in fp32 on the same weights, masks and rows, without dropout."""
    for length in lengths:
        plain = replace(shape, row_length=length, dropout=0.0)
        (loss, gradient), (half_loss, half_gradient) = (_loss_and_gradient(plain, name) for name in ("no", "bf16"))
        difference = float((half_gradient - gradient).norm() / gradient.norm())
        losses = f"loss {loss:.4f} in fp32, {half_loss:.4f} in bf16"
        yield Line("parity", f"rows of {length}", f"{losses}; gradient of the embeddings differs by {difference:.2%}")


def _loss_and_gradient(shape: Shape, precision: ComputePrecision) -> tuple[float, Tensor]:
    """Returns the loss of the first step, and the gradient of the word embeddings."""
    model, gradients = shape.roberta(), []
    architecture_of(model).decoder_weight.register_hook(gradients.append)
    return float(own_step(shape, model, precision)()), gradients[0].float()


def speed(shape: Shape, lengths: tuple[int, ...], is_compiled: bool = False) -> Iterator[Line]:
    """Yields tokens/s and the share of the data sheet's peak, in bf16 with dropout."""
    for length in lengths:
        one = replace(shape, row_length=length, num_rows=max(1, STEP_TOKENS // length) if _has_gpu() else 1)
        model = one.roberta()
        if is_compiled:
            architecture_of(model).encoder.compile()
        rate = _tokens_per_second(one, own_step(one, model))
        work = Work(length, Masking().selected_fraction, is_half=True, has_gpu=True)
        peak, flops = peak_flops(), rate * cost_of(model, work).flop_per_token
        used = f"{flops / peak:.1%} MFU" if peak else "peak of this device unknown"
        name = f"{'compiled' if is_compiled else 'eager'}, {one.num_rows} x {length}"
        yield Line(
            "compiled" if is_compiled else "speed", name, f"{rate:,.0f} tokens/s, {flops / 1e12:.2f} TFLOP/s, {used}"
        )


def memory(shapes: tuple[Shape, ...], lengths: tuple[int, ...]) -> Iterator[Line]:
    """Yields the largest micro-batch in 24 GB by the cost model, and the memory that a step takes on this GPU.

    torch is limited to 24 GB of a larger GPU. Without a GPU, only the plan is given.
    """
    if _has_gpu():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CARD / total))
    for shape in shapes:
        for length in lengths:
            for mode in MODES:
                one = replace(shape, row_length=length, num_steps=1)
                num_rows = rows_that_fit(one, mode)
                taken = _peak_memory(replace(one, num_rows=num_rows), mode) if _has_gpu() and num_rows else "not run"
                yield Line("memory", f"{shape.name}, {mode.name}, rows of {length}", f"{num_rows} planned, {taken}")


def _peak_memory(shape: Shape, mode: Mode) -> str:
    """Returns the peak memory of two steps, in words."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = shape.roberta()
    if mode.is_checkpointed:
        checkpoint_activations(model)
    try:
        step = own_step(shape, model, mode.precision, Masking(selected_fraction=mode.selected_fraction))
        float(step() + step())
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB allocated"


def _tokens_per_second(shape: Shape, step: Callable[[], Tensor]) -> float:
    """Returns the speed after three warm-up steps; the last loss waits for the GPU."""
    num_steps = NUM_STEPS if _has_gpu() else 2
    for _ in range(3):
        loss = step()
    float(loss)
    started = time.perf_counter()
    for _ in range(num_steps):
        loss = step()
    float(loss)
    return num_steps * shape.tokens_per_step / (time.perf_counter() - started)


def _has_gpu() -> bool:
    return torch.cuda.is_available()


def lines_of(section: str) -> Iterator[Line]:
    """Yields the figures of a part, with small shapes where there is no GPU."""
    shape, lengths = (BASE, LENGTHS) if _has_gpu() else (replace(SMALL, num_layers=1), (64, 128))
    match section:
        case "kernels":
            yield from kernels(shape, lengths)
        case "parity":
            yield from parity(shape, lengths)
        case "speed":
            yield from speed(shape, lengths)
        case "compiled":
            yield from speed(shape, lengths, is_compiled=True)
        case "memory":
            yield from memory((BASE, LARGE), MEMORY_LENGTHS)
        case _:
            sys.exit(f"error: there is no part {section!r}: name one of {', '.join(SECTIONS)}")


def table(path: Path) -> str:
    """Returns the figures as a table."""
    lines = [Line(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    width = max((len(line.case) for line in lines), default=0)
    device = torch.cuda.get_device_name() if _has_gpu() else "CPU, small shapes"
    return "\n".join(
        [f"{device}, torch {torch.__version__}", *(f"{x.section:10}{x.case:{width + 2}}{x.value}" for x in lines)]
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["table", path]:
            print(table(Path(path)))
        case [section]:
            for line in lines_of(section):
                print(json.dumps(asdict(line)), flush=True)
        case _:
            sys.exit(__doc__)
