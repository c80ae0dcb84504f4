"""Extends a loaded model to more positions, and verifies that its logits on short inputs did not change."""

import copy
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Extension, Provenance
from longmlm.data.pretrained import forget_lengths
from longmlm.data.rows import Rows
from longmlm.errors import ModelError, PositionsError
from longmlm.folders import new_folder
from longmlm.model.architecture import architecture_of
from longmlm.model.carried import save_model
from longmlm.model.distillation import distill
from longmlm.model.fitted_positions import NUM_LAYERS, PositionAttention, fitted_table
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import max_positions_at_a_time
from longmlm.model.packed_attention import attention_name
from longmlm.model.position_table import extended_table, position_table_of, replace_positions
from longmlm.model.terms import Terms, with_tokens
from longmlm.model.window_attention import use_window, window_of
from longmlm.settings.extend import STARTS_FROM_FIT

MAX_COMPARED = 2048  # positions of the longest input
ONE_BLOCK = threading.RLock()
ROUNDING = 1e-5  # a larger decoder may add in a different order


@dataclass(frozen=True, slots=True)
class ExtensionReport:
    """Root mean squares of trained and new position rows (NaN without new ones), and the largest logit difference."""

    trained_rows_rms: float
    new_rows_rms: float
    largest_difference: float


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raises ModelError for a weight that is NaN or infinite."""
    for key, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise ModelError(f"{name}: {key} holds NaN or infinite values: take an intact checkpoint")


@contextmanager
def one_thread() -> Iterator[None]:
    """Makes torch compute with one thread: the number of threads decides how sums are rounded.

    One block runs at a time: the number is partly the process's, partly each thread's own.
    """
    with ONE_BLOCK:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@one_thread()
def long_table(model: PreTrainedModel, extension: Extension) -> Tensor:
    """Returns the model's usable position rows extended to `extension.num_positions`, with any number of threads."""
    trained = position_table_of(model, extension.base.name).usable_rows.cpu()
    table = extended_table(trained, extension)
    if extension.initialisation not in STARTS_FROM_FIT:
        return table
    return fitted_table(trained, table, PositionAttention.of(model, NUM_LAYERS), extension.seed)


def with_positions(loaded: LoadedModel, table: Tensor) -> LoadedModel:
    """Returns a copy of the model and its tokenizer whose usable position rows are `table`."""
    model, tokenizer = copy.deepcopy(loaded.model), copy.deepcopy(loaded.tokenizer)
    replace_positions(model, table)
    tokenizer.model_max_length = len(table)
    forget_lengths(tokenizer)
    return replace(loaded, model=model, tokenizer=tokenizer, carried=loaded.carried.with_length(len(table)))


def with_num_positions(loaded: LoadedModel, num_positions: int) -> LoadedModel:
    """Returns a copy of a model trained in generated mode with a different number of positions.

    Raises PositionsError for any other model, and for more than n * n positions.
    """
    extension = loaded.provenance.extension
    if extension is None or extension.mode != "generated":
        raise PositionsError(
            "num_positions can only be set for a model trained in generated mode: any other model has the positions "
            "that were trained"
        )
    base = position_table_of(loaded.model).usable_rows[: extension.base_positions]
    extension = replace(extension, num_positions=num_positions)
    table = extended_table(base, extension) if num_positions > len(base) else base[:num_positions]
    return replace(with_positions(loaded, table), provenance=replace(loaded.provenance, extension=extension))


def with_distilled_layers(
    long: LoadedModel, base: LoadedModel, extension: Extension, rows: Rows, unfinished: Path
) -> tuple[LoadedModel, Extension]:
    """Returns the long model with its lowest layers distilled, and the extension with the record; see `distill`."""
    repeated = extended_table(position_table_of(base.model).usable_rows, replace(extension, initialisation="tile"))
    model, distilled = distill(long, with_positions(base, repeated), extension, rows, unfinished)
    return model, replace(extension, distilled=distilled)


def write_extension(
    base: LoadedModel,
    extension: Extension | None,
    folder: Path,
    terms: Terms | None = None,
    rows: Rows | None = None,
) -> ExtensionReport:
    """Writes the base model with more positions, more tokens or both into `folder`, and returns what changed.

    With `rows`, the lowest layers are distilled on them; until the folder is complete, a file beside it keeps the work.
    The folder is then loaded again. On inputs of up to n of the base model's tokens, the logits of these tokens must
    equal the base model's: bit for bit, or up to rounding if tokens were added. Only an initialisation that changes
    trained rows is exempt. Raises ModelError if they differ, or if the base has NaNs; then nothing is left on disk.
    """
    source = (extension or cast(Terms, terms).record).base
    check_finite(base.model, source.name)
    long = with_tokens(base, terms.tokens) if terms else base
    trained = table = torch.zeros(0)
    unfinished = Path(f"{folder}.unfinished")
    if extension:
        trained = position_table_of(base.model, extension.base.name).usable_rows
        table = long_table(base.model, extension)
        long = with_positions(long, table)
        if rows:
            long, extension = with_distilled_layers(long, base, extension, rows, unfinished)
            table = position_table_of(long.model).usable_rows
    provenance = Provenance(extension=extension, added_tokens=terms.record if terms else base.provenance.added_tokens)
    with new_folder(folder) as partial:
        save_model(long.model, long.tokenizer, long.carried, partial)
        artifact.write(partial / Provenance.FILE, provenance)
        num_tokens = base.model.config.vocab_size
        if terms:  # the first new token may use a spare row of the embedding
            num_tokens = min(num_tokens, long.tokenizer.convert_tokens_to_ids(terms.tokens[0].content))
        written = load_model(str(partial)).model
        written.set_attn_implementation(attention_name(base.model))  # a window changes logits, but no weights
        use_window(written, window_of(base.model))
        difference = largest_difference(base.model, written, num_tokens)
        may_change = extension is not None and extension.changes_trained_rows
        if not difference <= (math.inf if may_change else ROUNDING if terms else 0.0):
            raise ModelError(
                f"the long model's logits on short inputs differ from those of the base model by {difference:.2e}"
            )
    unfinished.unlink(missing_ok=True)
    trained_rms, new_rms = (rows.square().mean().sqrt().item() for rows in (trained, table[len(trained) :]))
    return ExtensionReport(trained_rms, new_rms, difference)


@torch.no_grad()
def largest_difference(base: PreTrainedModel, long: PreTrainedModel, num_tokens: int) -> float:
    """Returns the largest difference between two models' logits on random inputs of up to n tokens, some padded.

    Inputs and compared logits are limited to the first `num_tokens` ids of the vocabulary.
    """
    size = max_positions_at_a_time(max(base.config.vocab_size, long.config.vocab_size))
    num_positions = min(architecture_of(base).num_positions, MAX_COMPARED)
    generator = torch.Generator().manual_seed(0)
    pad = base.config.pad_token_id or 0
    largest = torch.zeros(())
    for length in sorted({1, 2, num_positions // 2 or 1, num_positions}):
        input_ids = torch.randint(0, num_tokens, (2, length), generator=generator)
        input_ids[input_ids == pad] = (pad + 1) % num_tokens
        attention_mask = torch.ones_like(input_ids)
        attention_mask[1, max(1, length * 3 // 4) :] = 0
        input_ids[attention_mask == 0] = pad
        logits = (_logits_in_parts(model.eval(), input_ids, attention_mask, size) for model in (base, long))
        for base_logits, long_logits in zip(*logits, strict=True):
            difference = (base_logits[:, :num_tokens] - long_logits[:, :num_tokens]).abs().max()
            largest = torch.maximum(largest, difference)  # unlike max, it keeps a NaN
    return largest.item()


def _logits_in_parts(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, size: int) -> Iterator[Tensor]:
    """Yields the logits of all tokens except padding, of at most `size` at a time."""
    parts = architecture_of(model)
    states = parts.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[attention_mask == 1]
    # Parts of about equal size: the product of a last part of one position would be rounded differently.
    yield from map(parts.head, states.tensor_split(-(-len(states) // size)))
