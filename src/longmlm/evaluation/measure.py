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
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor

from longmlm.artifacts.accuracy import Measured, PairAccuracy
from longmlm.batches.collate import collate
from longmlm.batches.masking import MaskedRow
from longmlm.batches.pairs import NO_PAIR, PairedRow
from longmlm.errors import counted
from longmlm.evaluation.frozen import FrozenRows, Viewer, groups_of
from longmlm.evaluation.tally import Tally
from longmlm.model.mlm import MlmObjective
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
    """What a model reads of a masked row, and the groups of its selected tokens; `index` is its number in the sums."""

    index: int
    view: MaskedRow
    groups: Int64[np.ndarray, "groupings selected"]


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
    row_ids, row_length = frozen.row_ids, frozen.rows.row_length
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    num_indices = math.ceil(len(row_ids) / num_processes) * num_processes
    found = {key: Tally.empty(num_indices, base_positions, row_length, frozen.rows_by_source) for key in subjects}
    share, batch_size = range(rank, num_indices, num_processes), BatchSize(frozen.rows_per_batch)
    chunk_size = batch_size.rows * BATCHES_PER_CHUNK
    progress = Progress(name, len(share) * len(subjects), "row", is_shown=bool(name) and rank == 0)
    with progress, ExitStack() as stack:
        for objective in {subject.objective for subject in subjects.values()}:
            stack.enter_context(inference(objective))
        for begin in range(0, len(share), chunk_size):
            indices = share[begin : begin + chunk_size]
            rows = [frozen.masked(row_ids[index % len(row_ids)]) for index in indices]
            groups = [groups_of(row, base_positions, row_length, frozen.isolates_documents) for row in rows]
            chunk = [*zip(indices, rows, groups, strict=True)]
            for key, (objective, view) in subjects.items():
                inputs = [
                    Input(index, shown.masked, own[:, np.searchsorted(row.selected, shown.positions)])
                    for index, row, own in chunk
                    for shown in view(row)
                ]
                inputs.sort(key=lambda one: -len(one.view.row))
                values, num_rows = [], 0
                device = accelerator.device if accelerator else objective.model.device
                predict = partial(_predicted, objective, pad=frozen.special.pad, device=device)
                for end, result in results_of_batches(
                    predict, inputs, batch_size, before_row, objective.has_full_parameters
                ):
                    values.append(result)
                    progress.advance(len(chunk) * end // len(inputs) - num_rows)
                    num_rows = len(chunk) * end // len(inputs)
                ends = np.cumsum([len(one.view.selected) for one in inputs])
                of_inputs = np.split(torch.cat(values, dim=1).double().cpu().numpy(), ends[:-1], axis=1)
                for one, own in zip(inputs, of_inputs, strict=True):
                    found[key].add(one.index, one.groups, own)
    if not accelerator:
        return found
    return {key: sums.over_ranks(accelerator, len(row_ids)) for key, sums in found.items()}


def _predicted(
    objective: MlmObjective, inputs: Sequence[Input], pad: int, device: torch.device
) -> Float[Tensor, "3 selected"]:
    """Returns for each selected token a 1, whether it is predicted correctly (1 or 0), and its loss."""
    is_packed, isolates = objective.reads_packed_batches, objective.isolates_documents
    batch = collate([one.view for one in inputs], None if is_packed else pad, isolates_documents=isolates)
    losses, is_correct = objective.predict(batch.to(device))
    return torch.stack([torch.ones_like(losses), is_correct.to(losses), losses])


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
    row_ids = frozen.row_ids
    rank, num_processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    num_indices = math.ceil(len(row_ids) / num_processes) * num_processes
    share, size = range(rank, num_indices, num_processes), BatchSize(frozen.rows_per_batch)
    found = np.zeros((4, num_indices))  # of each row: whether it is a pair, its label, whether it is correct, its loss
    predict = partial(
        _predicted_pairs,
        objective,
        pad=None if objective.reads_packed_batches else frozen.special.pad,
        device=accelerator.device if accelerator else objective.model.device,
    )
    progress = Progress(name, len(share), "pair", is_shown=bool(name) and rank == 0)
    with progress, inference(objective):
        for begin in range(0, len(share), frozen.rows_per_batch * BATCHES_PER_CHUNK):
            chunk = share[begin : begin + frozen.rows_per_batch * BATCHES_PER_CHUNK]
            pairs = [(index, frozen.masked_pair(row_ids[index % len(row_ids)])) for index in chunk]
            pairs.sort(key=lambda one: -len(one[1].row))
            start = 0
            for end, result in results_of_batches(predict, pairs, size, before_row, objective.has_full_parameters):
                found[:, [index for index, _ in pairs[start:end]]] = result.double().cpu().numpy()
                progress.advance(end - start)
                start = end
    if accelerator:
        found = accelerator.reduce(torch.from_numpy(found).to(accelerator.device), "sum").cpu().numpy()
    is_pair, labels, is_correct, losses = found[:, : len(row_ids)]
    count = int(is_pair.sum())
    if not 0 < labels.sum() < count:
        if accelerator:
            accelerator.print(f"{counted(count, 'held-out pair')} without both labels: their accuracy is not measured")
        return None
    share_correct, negatives = is_correct.sum() / count, labels.sum() / count
    return PairAccuracy(
        accuracy=float(100 * share_correct),
        standard_error=float(100 * math.sqrt(share_correct * (1 - share_correct) / count)),
        loss=float(losses.sum() / count),
        num_pairs=count,
        larger_share=float(100 * max(negatives, 1 - negatives)),
    )


def _predicted_pairs(
    objective: MlmObjective, pairs: Sequence[tuple[int, MaskedRow]], pad: int | None, device: torch.device
) -> Float[Tensor, "4 rows"]:
    """Returns for each row whether it is a pair, its label, whether that is predicted, and the loss; zeros for none."""
    labels = torch.tensor([cast(PairedRow, one.row).label for _, one in pairs], device=device)
    is_pair = labels != NO_PAIR
    losses, is_correct = objective.predict_pairs(collate([one for _, one in pairs], pad).to(device))
    found = torch.zeros(4, len(pairs), device=device)
    columns = (torch.ones_like(losses), labels[is_pair], is_correct, losses)
    found[:, is_pair] = torch.stack([column.to(losses) for column in columns])
    return found


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
