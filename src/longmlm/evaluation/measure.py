"""Measures models on held-out rows, all of them in one pass over the rows.

A chunk of rows is read and masked once, for every model and view. Its inputs are sorted by length before they are cut
into batches, so that little of a batch is padding. Eight inputs, four per batch:

    lengths 3 9 4 8 | 2 9 4 7     batches of 4 x 9 and 4 x 9 tokens, 26 of 72 are padding
    sorted  9 9 8 7 | 4 4 3 2     batches of 4 x 9 and 4 x 4 tokens, 6 of 52 are padding

Which inputs share a batch changes logits, and so losses, by rounding only; a prediction changes only where two tokens
are equally likely up to rounding. The sums do not depend on it otherwise: a row's tokens are added in their order.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from longmlm.artifacts.accuracy import Measured, PairAccuracy, group_ends
from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import MaskedRow
from longmlm.batches.pairs import IN_ORDER, NEGATIVE, NO_PAIR, PairedRow
from longmlm.errors import counted
from longmlm.evaluation.frozen import FrozenRows, View, Viewer, groups_of, whole
from longmlm.evaluation.tally import Tally, pair_accuracy
from longmlm.model.mlm import MlmObjective, MlmOutput
from longmlm.model.packed_attention import attention_name, use_packed_attention
from longmlm.progress import Progress
from longmlm.runtime.memory import BatchSize, results_of_batches
from longmlm.runtime.watchdog import heartbeat

BATCHES_PER_CHUNK = 32
NUM_PACKED_ROWS, MAX_DIFFERENCE = 4, 0.05  # of the mean loss, in nats; rounding in bf16 changes it by less than 0.01
Name = TypeVar("Name", bound=str)


class Subject(NamedTuple):
    """A model, and the view of each row that it is measured on."""

    objective: MlmObjective
    view: Viewer


class Input(NamedTuple):
    """What a model reads of a masked row, and the groups of what it predicts; `index` is its number in the sums."""

    index: int
    masked: MaskedRow
    groups: Int64[np.ndarray, "groupings units"]


class Units(NamedTuple):
    """What is predicted and counted: a row under its mask with the groups of its units, and how a batch is predicted.

    `name` is what progress counts.
    """

    name: str
    num_groups: int
    read: Callable[[int], tuple[MaskedRow, Int64[np.ndarray, "groupings units"]]]
    predict: Callable[[MlmObjective], Callable[[MlmBatch], MlmOutput]]


def measure(
    objective: MlmObjective,
    frozen: FrozenRows,
    view: Viewer,
    base_positions: int,
    accelerator: Accelerator | None,
    name: str = "",
) -> Measured:
    """Returns the model's accuracy on the selected tokens; shows progress under `name`, if there is one."""
    return tallies({name: Subject(objective, view)}, frozen, base_positions, accelerator, name)[name].measured


def tallies(
    subjects: Mapping[Name, Subject],
    frozen: FrozenRows,
    base_positions: int,
    accelerator: Accelerator | None,
    name: str = "",
    before_row: Callable[[], None] = heartbeat,
) -> dict[Name, Tally]:
    """Returns for each subject the sums from which its accuracy follows; shows progress under `name`, if there is one.

    The ranks share the rows and add up their sums. Every rank gets the same number of rows, as collectives inside a
    model require: some rows are repeated, and the repetitions are not counted. `before_row` is called before a forward
    pass, once for each of its inputs. Where a view is one input per row, every rank makes the same number of forward
    passes and of these calls. Without an accelerator, this process measures alone, on each model's device.
    """
    row_length = frozen.rows.row_length

    def read(row_id: int) -> tuple[MaskedRow, Int64[np.ndarray, "groupings selected"]]:
        row = frozen.masked(row_id)
        return row, groups_of(row, base_positions, row_length, frozen.isolates_documents)

    tokens = Units("row", group_ends(base_positions, row_length)[-1], read, attrgetter("predict"))
    sums = _sums(tokens, subjects, frozen, accelerator, name, before_row)
    return {key: Tally(own, base_positions, row_length, frozen.rows_by_source) for key, own in sums.items()}


def measure_pairs(
    objective: MlmObjective,
    frozen: FrozenRows,
    accelerator: Accelerator | None,
    name: str = "",
    before_row: Callable[[], None] = heartbeat,
) -> PairAccuracy | None:
    """Returns the model's accuracy on the frozen pairs of the held-out rows; None unless both labels occur.

    Ranks, progress and `before_row` are as in `tallies`.
    """

    def read(row_id: int) -> tuple[MaskedRow, Int64[np.ndarray, "1 pairs"]]:
        masked = frozen.masked_pair(row_id)
        label = cast(PairedRow, masked.row).label
        return masked, np.array([[] if label == NO_PAIR else [label]], dtype=np.int64)

    pairs = Units("pair", len((IN_ORDER, NEGATIVE)), read, attrgetter("predict_pairs"))
    sums = _sums(pairs, {name: Subject(objective, whole)}, frozen, accelerator, name, before_row)[name]
    measured = pair_accuracy(sums)
    if measured is None and accelerator:
        number = counted(int(sums[0].sum()), "held-out pair")
        accelerator.print(f"{number}, but not of both labels: pair accuracy is not measured")
    return measured


def _sums(
    units: Units,
    subjects: Mapping[Name, Subject],
    frozen: FrozenRows,
    accelerator: Accelerator | None,
    name: str,
    before_row: Callable[[], None],
) -> dict[Name, Float64[np.ndarray, "3 rows groups"]]:
    """Returns for each subject the number of units, the correct predictions and the losses, by row and group."""
    row_ids = frozen.row_ids
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    num_indices = math.ceil(len(row_ids) / num_processes) * num_processes
    found = {key: np.zeros((3, num_indices, units.num_groups)) for key in subjects}
    share, batch_size = range(rank, num_indices, num_processes), BatchSize(frozen.rows_per_batch)
    chunk_size = batch_size.rows * BATCHES_PER_CHUNK
    progress = Progress(name, len(share) * len(subjects), units.name, is_shown=bool(name) and rank == 0)
    with progress, ExitStack() as stack:
        for objective in {subject.objective for subject in subjects.values()}:
            stack.enter_context(inference(objective))
        for begin in range(0, len(share), chunk_size):
            chunk = [(index, *units.read(row_ids[index % len(row_ids)])) for index in share[begin : begin + chunk_size]]
            for key, (objective, view) in subjects.items():
                inputs = [
                    Input(index, shown.masked, _groups_in(row, groups, shown))
                    for index, row, groups in chunk
                    for shown in view(row)
                ]
                inputs.sort(key=lambda one: -len(one.masked.row))
                values, num_rows = [], 0
                device = accelerator.device if accelerator else objective.model.device
                predict = partial(_predicted, units, objective, pad=frozen.special.pad, device=device)
                for end, result in results_of_batches(
                    predict, inputs, batch_size, before_row, objective.has_full_parameters
                ):
                    values.append(result)
                    progress.advance(len(chunk) * end // len(inputs) - num_rows)
                    num_rows = len(chunk) * end // len(inputs)
                ends = np.cumsum([one.groups.shape[1] for one in inputs])
                of_inputs = np.split(torch.cat(values, dim=1).double().cpu().numpy(), ends[:-1], axis=1)
                for one, own in zip(inputs, of_inputs, strict=True):
                    for total, value in zip(found[key][:, one.index], own, strict=True):
                        np.add.at(total, one.groups.reshape(-1), np.tile(value, len(one.groups)))
    if accelerator:
        over_ranks = {key: torch.from_numpy(sums).to(accelerator.device) for key, sums in found.items()}
        found = {key: accelerator.reduce(sums, "sum").cpu().numpy() for key, sums in over_ranks.items()}
    return {key: sums[:, : len(row_ids)] for key, sums in found.items()}


def _groups_in(
    row: MaskedRow, groups: Int64[np.ndarray, "groupings units"], shown: View
) -> Int64[np.ndarray, "groupings shown"]:
    """Returns the groups of those selected tokens of a row that a view shows; a row shown whole keeps all groups."""
    return groups if shown.masked is row else groups[:, np.searchsorted(row.selected, shown.positions)]


def _predicted(
    units: Units, objective: MlmObjective, inputs: Sequence[Input], pad: int, device: torch.device
) -> Float[Tensor, "3 units"]:
    """Returns for each unit a 1, whether it is predicted correctly (1 or 0), and its loss."""
    rows = [one.masked for one in inputs]
    batch = collate(
        rows, None if objective.reads_packed_batches else pad, isolates_documents=objective.isolates_documents
    )
    losses, is_correct = units.predict(objective)(batch.to(device))
    return torch.stack([torch.ones_like(losses), is_correct.to(losses), losses])


def row_logits(objective: MlmObjective, masked: MaskedRow, pad: int) -> Float[Tensor, "selected vocabulary"]:
    """Returns the fp32 logits at the selected positions of a row, with isolated documents if the model has them."""
    isolates = objective.isolates_documents
    is_packed = isolates and objective.reads_packed_batches  # else not, since a single row has no padding
    batch = collate([masked], None if is_packed else pad, isolates_documents=isolates)
    return objective.logits(batch.to(objective.model.device))


@contextmanager
def inference(objective: MlmObjective) -> Iterator[None]:
    """Turns gradients and dropout off and, on a CPU in bf16, packs rows, until the block ends."""
    model, modes = objective.encoder, [(module, module.training) for module in objective.modules()]
    attention = attention_name(model)
    objective.eval()
    if model.device.type == "cpu" and objective.precision != "no":  # in fp32 it computes the same as torch's
        use_packed_attention(model)
    try:
        with torch.inference_mode():
            yield
    finally:
        if attention_name(model) != attention:
            model.set_attn_implementation(attention)
        for module, is_training in modes:
            module.training = is_training


def check_packed_attention(objective: MlmObjective, frozen: FrozenRows) -> tuple[str, ...]:
    """Compares the loss on some held-out rows, padded and packed; if they differ, the model reads padded ones.

    Returns the reason as one line, or nothing if they agree.
    """
    masked = [frozen.masked(row_id) for row_id in frozen.row_ids[: min(NUM_PACKED_ROWS, frozen.rows_per_batch)]]
    try:
        with inference(objective):
            isolates, device = objective.isolates_documents, objective.model.device
            batches = [collate(masked, pad, (), isolates).to(device) for pad in (frozen.special.pad, None)]
            padded, packed = (float(objective(batch)["mlm"].loss_sum) / len(batch.labels) for batch in batches)
        is_equal = abs(packed - padded) <= MAX_DIFFERENCE
        reason = "" if is_equal else f"gives a loss of {packed:.3f}, padded rows {padded:.3f}"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"fails: {str(error).splitlines()[0]}"
    if not reason:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the size of micro-batches depends on the memory that is free
        return ()
    objective.encoder.set_attn_implementation("sdpa")
    return (f"attention over packed rows {reason} (torch {torch.__version__}): rows are padded instead",)
