"""Prints how many rows of RoBERTa fit into 24 GB in training, by row length and mode, and checks the estimate.

The tables come from longmlm's cost model, with shapes only and no weights. `stock` is transformers' RobertaForMaskedLM,
which computes logits at all positions; `eager` saves every attention probability, as transformers did before fused
attention. The method's author reached 22, 9 and 5 rows of 512, 1024 and 1536 tokens on a card of 24 GB.

Then the cost model is compared with the tensors that autograd saves on a CPU, per row and in every mode. A GPU saves
other tensors: for each dropout one byte per unit, where a CPU saves noise in the type of the activations; for fused
attention, query, key, value and output as on a CPU, 4 bytes per head and token (the log-sum-exp), and no probabilities;
and for padded rows, a mask value for each pair of tokens. longmlm's rows have no padding.

    python benchmarks/micro_batch_memory.py [--quick]
"""

import argparse
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from steps import roberta_config
from torch import Tensor, nn
from transformers import RobertaForMaskedLM

from longmlm.batches.collate import MlmBatch
from longmlm.model.cost import USED_SHARE, Cost, Work, cost_of
from longmlm.model.mlm import MlmObjective, checkpoint_activations, set_dropout
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.pretrain import ComputePrecision

CARD = 24 << 30
LENGTHS = (512, 1024, 1536, 2048, 4096, 8192)
AUTHOR = {512: 22, 1024: 9, 1536: 5}
AIM = 4.0
SELECTED, DROPOUT = 0.15, 0.1
EAGER_BYTES_GPU, EAGER_BYTES_CPU = 9, 12  # per score in fp32: probability, dropped probability, dropout's mask
PEAK_BYTES_PER_LOGIT, SAVED_BYTES_PER_LOGIT = 12, 4  # with its gradients, and in the forward pass alone
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a RoBERTa model."""

    name: str
    num_layers: int
    width: int
    vocabulary: int = 50265

    @property
    def num_heads(self) -> int:
        """The number of attention heads, each of 64 units."""
        return self.width // 64

    def model(self, length: int, attention: str = "sdpa") -> RobertaForMaskedLM:
        """Returns an untrained model with dropout, in training mode."""
        config = roberta_config(self.num_layers, self.width, self.vocabulary, length)
        model = RobertaForMaskedLM(config).train()
        model.set_attn_implementation(attention)
        set_dropout(model, DROPOUT)
        return model


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to train: stock or longmlm's, its precision, eager attention, recomputation."""

    name: str
    is_stock: bool
    precision: ComputePrecision
    is_eager: bool = False
    is_checkpointed: bool = False

    def work(self, length: int, has_gpu: bool) -> Work:
        """Returns what a training step computes."""
        fraction = 1.0 if self.is_stock else SELECTED
        return Work(length, fraction, self.precision != "no", self.is_checkpointed, has_gpu)


OURS = Mode("longmlm, bf16", False, "bf16")
MODES = (
    Mode("stock, fp32, eager", True, "no", is_eager=True),
    Mode("stock, fp32", True, "no"),
    Mode("stock, bf16", True, "bf16"),
    Mode("longmlm, fp32", False, "no"),
    OURS,
    Mode("longmlm, bf16, recomputed", False, "bf16", is_checkpointed=True),
)
BASE, LARGE = Shape("RoBERTa-base", 12, 768), Shape("RoBERTa-large", 24, 1024)
SMALL = Shape("small", 3, 256, 8192)


@functools.cache
def meta_model(shape: Shape, length: int) -> RobertaForMaskedLM:
    """Returns a model without weights."""
    with torch.device("meta"):
        return shape.model(length)


def cost_on_gpu(shape: Shape, mode: Mode, length: int) -> Cost:
    """Returns the cost on a GPU: stock holds all logits at once, and eager attention adds its scores."""
    cost = cost_of(meta_model(shape, length), mode.work(length, has_gpu=True))
    eager = EAGER_BYTES_GPU * shape.num_layers * length**2 * shape.num_heads if mode.is_eager else 0
    logits = 0 if mode.is_stock else cost.row_logit_bytes
    return replace(cost, row_bytes=cost.row_bytes + eager, row_logit_bytes=logits)


def rows_that_fit(shape: Shape, mode: Mode, length: int, share: float = USED_SHARE) -> int:
    """Returns how many rows fit into this share of the card, with weights, gradients and moments."""
    cost = cost_on_gpu(shape, mode, length)
    return cost.fitting_rows(round(CARD * share / USED_SHARE), cost.state_bytes)


def predicted_bytes(shape: Shape, mode: Mode, length: int) -> int:
    """Returns the bytes that the forward pass of a row saves on a CPU, by the cost model.

    They include neither gradients of logits nor a recomputed layer.
    """
    work = mode.work(length, has_gpu=False)
    cost = cost_of(meta_model(shape, length), work)
    logits = round(work.selected_fraction * length * shape.vocabulary)
    kept = cost_of(meta_model(shape, length), replace(work, is_checkpointed=False))
    layer = (kept.row_bytes - kept.evaluation_row_bytes) // (shape.num_layers - 1)
    recomputed = layer if mode.is_checkpointed else 0
    eager = EAGER_BYTES_CPU * shape.num_layers * length**2 * shape.num_heads if mode.is_eager else 0
    return cost.row_bytes - recomputed - (PEAK_BYTES_PER_LOGIT - SAVED_BYTES_PER_LOGIT) * logits + eager


def measured_bytes(shape: Shape, mode: Mode, length: int) -> int:
    """Returns the bytes that autograd saves on this CPU in the forward pass of one more row."""
    torch.manual_seed(0)
    model = shape.model(length, "eager" if mode.is_eager else "sdpa")
    use_packed_attention(model)
    if mode.is_checkpointed:
        checkpoint_activations(model)
    objective = MlmObjective(model, mode.precision).train()
    one, two = (saved_bytes(model, partial(loss_of, objective, mode, length, num_rows)) for num_rows in (1, 2))
    return two - one


def loss_of(objective: MlmObjective, mode: Mode, length: int, num_rows: int) -> Tensor:
    """Returns the loss of rows of random tokens, with logits at all positions for stock.

    Without eager attention, stock runs with longmlm's attention: transformers' own would save scores on a CPU.
    """
    tokens = torch.randint(5, 8000, (num_rows, length))
    if mode.is_eager:
        return objective.model(input_ids=tokens, labels=tokens).loss
    num_selected = tokens.numel() if mode.is_stock else round(SELECTED * tokens.numel())
    selected = torch.randperm(tokens.numel())[:num_selected].sort().values
    labels, lengths = tokens.flatten()[selected], (length,) * num_rows
    return objective(MlmBatch(tokens.view(1, -1), None, selected, labels, row_lengths=lengths)).loss_sum


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Returns the bytes of the distinct storages that autograd saves in a forward pass, without parameters."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage  # kept alive, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = forward()
    if not loss.isfinite():
        raise RuntimeError("the loss is not finite")
    return sum(storage.nbytes() for storage in saved.values())


def print_table(shape: Shape) -> None:
    """Prints the rows that fit, by mode and length, as Markdown."""
    print(f"\n{shape.name}, rows in 24 GB, dropout {DROPOUT}, {SELECTED:.0%} of the tokens selected\n")
    print("| mode | " + " | ".join(f"{length}" for length in LENGTHS) + " |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    for mode in MODES:
        rows = [rows_that_fit(shape, mode, length) for length in LENGTHS]
        print(f"| {mode.name} | " + " | ".join(str(number or "none") for number in rows) + " |")
    for mode in (MODES[0], OURS):
        filled = [rows_that_fit(shape, mode, length, share=1.0) for length in LENGTHS]
        print(f"| {mode.name}, card filled | " + " | ".join(str(number or "none") for number in filled) + " |")


def against_the_author(length: int) -> dict[str, object]:
    """Returns an entry for the JSON line: the rows that longmlm chooses without recomputation, and the author's."""
    rows, author = rows_that_fit(BASE, OURS, length), AUTHOR[length]
    shape = f"{BASE.name}, rows of {length} tokens in 24 GB, {OURS.name}, no recomputation"
    entry: dict[str, object] = {"shape": shape, "ours": rows, "peer": author, "ratio": rows / author, "unit": "rows"}
    return {**entry, "aim": AIM, "met": rows / author >= AIM}


def against_autograd(shape: Shape, mode: Mode, length: int) -> dict[str, object]:
    """Prints and returns how the cost model compares with what autograd saves on this CPU; 1 is the aim."""
    predicted, measured = predicted_bytes(shape, mode, length) / 2**20, measured_bytes(shape, mode, length) / 2**20
    label, ratio = f"{shape.name}, 1 x {length}, {mode.name}", predicted / measured
    print(f"  {label:44} model {predicted:8.1f} MiB  saved {measured:8.1f} MiB  {ratio:.2f}", flush=True)
    entry: dict[str, object] = {"shape": f"{label}: saved tensors on a CPU", "ours": predicted, "peer": measured}
    return {**entry, "ratio": ratio, "unit": "MiB", "aim": 1.0, "met": abs(ratio - 1) <= TOLERANCE}


def main() -> None:
    """Prints the tables, the comparison with autograd, and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="compare with autograd on a small model only")
    is_quick = parser.parse_args().quick
    for shape in (BASE, LARGE):
        print_table(shape)
    print("\nThe cost model and the tensors that autograd saves on this CPU, per row")
    checked = [(SMALL, mode, 256) for mode in MODES]
    if not is_quick:
        checked += [(BASE, mode, 512) for mode in MODES] + [(BASE, OURS, 1536)]
    first, *others = [against_the_author(length) for length in sorted(AUTHOR, reverse=True)]
    others += [against_autograd(*one) for one in checked]
    print(json.dumps({"name": "micro-batch in 24 GB", **first, "others": others}))


if __name__ == "__main__":
    main()
