"""Extends a loaded model to more positions, and verifies that its logits on short inputs did not change."""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import Extension, Provenance
from longmlm.errors import ModelError, PositionsError
from longmlm.folders import new_folder
from longmlm.model.architecture import architecture_of, replace_positions
from longmlm.model.loading import LoadedModel, load_model, quiet_transformers
from longmlm.model.positions import extended_table


@dataclass(frozen=True, slots=True)
class ExtensionReport:
    """Root mean squares of trained and new position rows, and the largest difference between logits on short inputs."""

    trained_rows_rms: float
    new_rows_rms: float
    largest_difference: float


def check_extendable(provenance: Provenance, name: str) -> None:
    """Raises PositionsError for a long model that was not trained at its length: its new rows are untrained."""
    extension, trained = provenance.extension, provenance.trained
    if extension is None or (trained and trained.steps and trained.row_length == extension.num_positions):
        return
    raise PositionsError(
        f"{name} was extended to {extension.num_positions} positions and has not been trained at that length: extend "
        f"{extension.base.name} to the length you want, or pretrain this model first"
    )


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raises ModelError for a weight that is NaN or infinite."""
    for key, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise ModelError(f"{name}: {key} holds NaN or infinite values: take an intact checkpoint")


def with_positions(loaded: LoadedModel, table: Tensor) -> LoadedModel:
    """Returns a copy of the model and its tokenizer whose usable position rows are `table`."""
    model, tokenizer = copy.deepcopy(loaded.model), copy.deepcopy(loaded.tokenizer)
    replace_positions(model, table)
    tokenizer.model_max_length = len(table)
    return replace(loaded, model=model, tokenizer=tokenizer)


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
    base = architecture_of(loaded.model).usable_rows[: extension.base_positions]
    extension = replace(extension, num_positions=num_positions)
    table = extended_table(base, extension) if num_positions > len(base) else base[:num_positions]
    return replace(with_positions(loaded, table), provenance=replace(loaded.provenance, extension=extension))


def write_extension(base: LoadedModel, extension: Extension, folder: Path) -> ExtensionReport:
    """Writes the long model into `folder` and returns what changed; nothing is left on disk if a check fails.

    The written folder is loaded again. Its logits on inputs of up to n tokens must equal the base model's bit for bit,
    unless the initialisation changes the trained rows. Raises ModelError if they do not, or if the base has NaNs.
    """
    check_finite(base.model, extension.base.name)
    trained = architecture_of(base.model).usable_rows
    table = extended_table(trained, extension)
    long = with_positions(base, table)
    with new_folder(folder) as partial:
        with quiet_transformers():
            long.model.save_pretrained(partial)
            long.tokenizer.save_pretrained(partial)
        artifact.write(partial / Provenance.FILE, Provenance(extension=extension))
        difference = largest_difference(base.model, load_model(str(partial)).model)
        if not difference <= (math.inf if extension.initialisation == "interpolate" else 0):
            raise ModelError(
                f"the long model's logits on short inputs differ from those of the base model by {difference:.2e}"
            )
    trained_rms, new_rms = (rows.square().mean().sqrt().item() for rows in (trained, table[len(trained) :]))
    return ExtensionReport(trained_rms, new_rms, difference)


@torch.no_grad()
def largest_difference(base: PreTrainedModel, long: PreTrainedModel) -> float:
    """Returns the largest difference between two models' logits on random inputs of up to n tokens, some padded."""
    num_positions = architecture_of(base).num_positions
    generator = torch.Generator().manual_seed(0)
    pad = base.config.pad_token_id or 0
    largest = torch.zeros(())
    for length in sorted({1, 2, num_positions // 2 or 1, num_positions}):
        input_ids = torch.randint(0, base.config.vocab_size, (2, length), generator=generator)
        input_ids[input_ids == pad] = (pad + 1) % base.config.vocab_size
        attention_mask = torch.ones_like(input_ids)
        attention_mask[1, max(1, length * 3 // 4) :] = 0
        input_ids[attention_mask == 0] = pad
        base_logits, long_logits = (
            model.eval()(input_ids=input_ids, attention_mask=attention_mask).logits[attention_mask == 1]
            for model in (base, long)
        )
        largest = torch.maximum(largest, (base_logits - long_logits).abs().max())  # unlike max, it keeps a NaN
    return largest.item()
