"""A loaded model to a longer one: table, buffers, config, tokenizer, and the proof that short inputs did not change."""

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from longmlm.errors import ModelError, PositionsError
from longmlm.folders import new_folder, write_json
from longmlm.model.architecture import architecture_of, replace_positions
from longmlm.model.loading import PROVENANCE, LoadedModel, load_model
from longmlm.model.positions import extended_table
from longmlm.settings.extend import Initialisation, PositionMode


@dataclass(frozen=True, slots=True)
class Provenance:
    """What longmlm.json says of a long checkpoint; `trained` stays absent until pretraining.

    `base_positions` is the n of the decomposition, `num_positions` the usable length; both leave reserved rows out.
    """

    base: str
    base_revision: str | None
    base_positions: int
    num_positions: int
    initialisation: Initialisation
    alpha: float
    seed: int
    mode: PositionMode = "materialized"
    trained: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ExtensionReport:
    """What the extension did: root mean squares of the trained and the new rows, largest change on short inputs."""

    trained_rows_rms: float
    new_rows_rms: float
    largest_change: float


def check_extendable(provenance: dict[str, Any], name: str) -> None:
    """Raises PositionsError for a long model that was not trained at its length: its new rows are not trained ones."""
    if "num_positions" not in provenance:
        return
    trained = provenance.get("trained") or {}
    if trained.get("row_length") != provenance["num_positions"] or not trained.get("steps"):
        raise PositionsError(
            f"{name} was extended to {provenance['num_positions']} positions and not trained at that length since: "
            f"extend {provenance['base']} to the length you want, or pretrain this one first"
        )


def extended(loaded: LoadedModel, table: torch.Tensor) -> LoadedModel:
    """Returns a copy of the model, with its tokenizer, whose positions are the rows of `table`."""
    model = copy.deepcopy(loaded.model)
    replace_positions(model, table)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.model_max_length = len(table)
    return LoadedModel(model, tokenizer, loaded.revision, loaded.notes)


def at_length(loaded: LoadedModel, provenance: Mapping[str, Any], num_positions: int) -> LoadedModel:
    """Returns a trained long model, with its tokenizer, at another number of positions.

    Raises PositionsError unless its positions were generated, and beyond n * n.
    """
    if provenance.get("mode") != "generated":
        raise PositionsError(
            "num_positions can be set for a model trained in generated mode only: the positions of others are those "
            "that were trained"
        )
    parts = architecture_of(loaded.model)
    base = parts.position_table.weight.detach()[parts.position_offset :][: provenance["base_positions"]]
    if num_positions <= len(base):
        return extended(loaded, base[:num_positions])
    about = (provenance[key] for key in ("initialisation", "alpha", "seed"))
    return extended(loaded, extended_table(base, num_positions, *about))


def write_extension(base: LoadedModel, provenance: Provenance, folder: Path) -> ExtensionReport:
    """Writes the long model into `folder` and returns what changed; nothing is left when a check fails.

    What was written is loaded again. Unless the initialisation changes the trained rows, its logits on inputs of up to
    n tokens must be those of the base model, bit for bit; else ModelError is raised.
    """
    parts = architecture_of(base.model)
    trained = parts.position_table.weight.detach()[parts.position_offset :]
    table = extended_table(
        trained, provenance.num_positions, provenance.initialisation, provenance.alpha, provenance.seed
    )
    long = extended(base, table)
    with new_folder(folder) as partial:
        long.model.save_pretrained(partial)
        long.tokenizer.save_pretrained(partial)
        write_json(partial / PROVENANCE, asdict(provenance))
        change = largest_change(base.model, load_model(str(partial)).model)
        if not change <= (math.inf if provenance.initialisation == "interpolate" else 0):
            raise ModelError(f"the long model's logits on short inputs differ from the base model's by {change:.2e}")
    return ExtensionReport(_rms(trained), _rms(table[len(trained) :]), change)


def _rms(rows: torch.Tensor) -> float:
    return float(rows.square().mean().sqrt())


@torch.no_grad()
def largest_change(base: PreTrainedModel, long: PreTrainedModel) -> float:
    """Returns the largest difference of the logits on random tokens, at several lengths up to n, padded too."""
    num_positions = architecture_of(base).num_positions
    generator = torch.Generator().manual_seed(0)
    pad = base.config.pad_token_id or 0
    differences = []
    for length in sorted({1, 2, num_positions // 2 or 1, num_positions}):
        input_ids = torch.randint(0, base.config.vocab_size, (2, length), generator=generator)
        input_ids[input_ids == pad] = (pad + 1) % base.config.vocab_size
        attention_mask = torch.ones_like(input_ids)
        attention_mask[1, max(1, length * 3 // 4) :] = 0
        input_ids[attention_mask == 0] = pad
        answers = [
            model.eval()(input_ids=input_ids, attention_mask=attention_mask).logits[attention_mask == 1]
            for model in (base, long)
        ]
        differences.append((answers[0] - answers[1]).abs().max())
    return float(torch.stack(differences).max())  # not a number where one of them is none, which max() would lose
