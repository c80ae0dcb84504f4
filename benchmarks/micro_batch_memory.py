"""Prints how many rows of RoBERTa fit into 24 GB in training, by row length and mode, and checks the estimate.

The tables come from longmlm's cost model, with shapes only and no weights. `stock` is transformers' RobertaForMaskedLM,
which computes logits at all positions; `eager` saves every attention probability, as transformers did before fused
attention. Su (2020) reached 22, 9 and 5 rows of 512, 1024 and 1536 tokens on a card of 24 GB.

Then the cost model is compared with the tensors that autograd saves on a CPU, per row and in every mode. A GPU saves
other tensors: for each dropout one byte per unit, where a CPU saves noise in the type of the activations; for fused
attention, query, key, value and output as on a CPU, 4 bytes per head and token (the log-sum-exp), and no probabilities;
and for padded rows, a mask value for each pair of tokens. longmlm's rows have no padding.

    python benchmarks/micro_batch_memory.py [--quick]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from steps import BASE, LARGE, SMALL, Shape, random_batch
from torch import Tensor, nn

from longmlm.model.cost import USED_SHARE, Work, cost_of
from longmlm.model.mlm import MlmObjective, checkpoint_activations
from longmlm.model.packed_attention import use_packed_attention
from longmlm.settings.pretrain import ComputePrecision

CARD = 24 << 30
LENGTHS = (512, 1024, 1536, 2048, 4096, 8192)
AUTHOR = {512: 22, 1024: 9, 1536: 5}
AIM = 4.0
SELECTED = 0.15
EAGER_BYTES_GPU, EAGER_BYTES_CPU = 9, 12  # per score in fp32: probability, dropped probability, dropout's mask
PEAK_BYTES_PER_LOGIT, SAVED_BYTES_PER_LOGIT = 12, 4  # with its gradients, and in the forward pass alone
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to train: precision, selected tokens, recomputation, eager attention, logits held all at once."""

    name: str
    precision: ComputePrecision
    selected_fraction: float = SELECTED
    is_checkpointed: bool = False
    is_eager: bool = False
    has_all_logits: bool = False

    def work(self, row_length: int, has_gpu: bool) -> Work:
        """Returns what a training step computes."""
        is_half, fraction = self.precision != "no", self.selected_fraction
        return Work(row_length, fraction, is_half, self.is_checkpointed, has_gpu, self.has_all_logits)

    def num_scores(self, shape: Shape) -> int:
        """Returns how many attention scores of a row are saved: none unless attention is eager."""
        return shape.num_layers * shape.row_length**2 * shape.config().num_attention_heads if self.is_eager else 0


OURS = Mode("longmlm, bf16", "bf16")
stock = partial(Mode, selected_fraction=1.0, has_all_logits=True)
MODES = (
    stock("stock, fp32, eager", "no", is_eager=True),
    stock("stock, fp32", "no"),
    stock("stock, bf16", "bf16"),
    Mode("longmlm, fp32", "no"),
    OURS,
    Mode("longmlm, bf16, recomputed", "bf16", is_checkpointed=True),
)
CHECKED = replace(SMALL, num_layers=3, row_length=256)


def rows_that_fit(shape: Shape, mode: Mode, share: float = USED_SHARE) -> int:
    """Returns how many rows fit into this share of the card, with weights, gradients and moments."""
    cost = cost_of(shape.without_weights(), mode.work(shape.row_length, has_gpu=True))
    cost = replace(cost, row_bytes=cost.row_bytes + EAGER_BYTES_GPU * mode.num_scores(shape))
    return cost.fitting_rows(round(CARD * share / USED_SHARE), cost.state_bytes)


def predicted_bytes(shape: Shape, mode: Mode) -> int:
    """Returns the bytes that the forward pass of a row saves on a CPU, by the cost model.

    They include neither gradients of logits nor a recomputed layer.
    """
    model, work = shape.without_weights(), mode.work(shape.row_length, has_gpu=False)
    cost, kept = cost_of(model, work), cost_of(model, replace(work, is_checkpointed=False))
    logits = round(work.selected_fraction * work.row_length * shape.vocabulary)
    layer = (kept.row_bytes - kept.evaluation_row_bytes) // (shape.num_layers - 1)
    recomputed = layer if mode.is_checkpointed else 0
    unsaved = recomputed + (PEAK_BYTES_PER_LOGIT - SAVED_BYTES_PER_LOGIT) * logits
    return cost.row_bytes - unsaved + EAGER_BYTES_CPU * mode.num_scores(shape)


def measured_bytes(shape: Shape, mode: Mode) -> int:
    """Returns the bytes that autograd saves on this CPU in the forward pass of one more row."""
    model = shape.roberta()
    if mode.is_eager:
        model.set_attn_implementation("eager")
    use_packed_attention(model)
    if mode.is_checkpointed:
        checkpoint_activations(model)
    objective = MlmObjective(model, mode.precision).train()
    shapes = (replace(shape, num_rows=num_rows) for num_rows in (1, 2))
    one, two = (saved_bytes(model, partial(loss_of, objective, mode, rows)) for rows in shapes)
    return two - one


def loss_of(objective: MlmObjective, mode: Mode, shape: Shape) -> Tensor:
    """Returns the loss of rows of random tokens, with logits at all positions for stock.

    Without eager attention, stock runs with longmlm's attention: transformers' own would save scores on a CPU.
    """
    num_selected = round(mode.selected_fraction * shape.tokens_per_step)
    batch = random_batch(objective, shape.num_rows, shape.row_length, num_selected)
    if mode.is_eager:
        return objective.model(input_ids=batch.input_ids, labels=batch.input_ids).loss
    return objective(batch)["mlm"].loss_sum


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


def table_line(name: str, shape: Shape, mode: Mode, share: float = USED_SHARE, lengths: Sequence[int] = LENGTHS) -> str:
    """Returns the rows that fit, by length, as a line of a Markdown table."""
    rows = (rows_that_fit(replace(shape, row_length=length), mode, share) for length in lengths)
    return f"| {name} | {' | '.join(str(number or 'none') for number in rows)} |"


def print_table(shape: Shape) -> None:
    """Prints the rows that fit, by mode and length, as Markdown."""
    print(f"\n{shape.name}, rows in 24 GB, dropout {shape.dropout}, {SELECTED:.0%} of the tokens selected\n")
    print("| mode | " + " | ".join(f"{length}" for length in LENGTHS) + " |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    for mode in MODES:
        print(table_line(mode.name, shape, mode))
    for mode in (MODES[0], OURS):
        print(table_line(f"{mode.name}, card filled", shape, mode, share=1.0))


def against_the_author(length: int) -> dict[str, object]:
    """Returns an entry for the JSON line: the rows that longmlm chooses without recomputation, and those of Su 2020."""
    rows, author = rows_that_fit(replace(BASE, row_length=length), OURS), AUTHOR[length]
    shape = f"{BASE.name}, rows of {length} tokens in 24 GB, {OURS.name}, no recomputation"
    entry: dict[str, object] = {"shape": shape, "ours": rows, "peer": author, "ratio": rows / author, "unit": "rows"}
    return {**entry, "aim": AIM, "met": rows / author >= AIM}


def against_autograd(shape: Shape, mode: Mode) -> dict[str, object]:
    """Prints and returns how the cost model compares with what autograd saves on this CPU; 1 is the aim."""
    predicted, measured = predicted_bytes(shape, mode) / 2**20, measured_bytes(shape, mode) / 2**20
    label, ratio = f"{shape.name}, 1 x {shape.row_length}, {mode.name}", predicted / measured
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
    checked = [(CHECKED, mode) for mode in MODES]
    if not is_quick:
        checked += [(replace(BASE, row_length=512), mode) for mode in MODES] + [(BASE, OURS)]
    first, *others = [against_the_author(length) for length in sorted(AUTHOR, reverse=True)]
    others += [against_autograd(*one) for one in checked]
    print(json.dumps({"name": "micro-batch in 24 GB", "is_quick": is_quick, **first, "others": others}))


if __name__ == "__main__":
    main()
