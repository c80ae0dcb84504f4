"""Vectors of a frozen encoder, by a hash of the document's tokens: the trials of a comparison share them in a file."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longmlm.errors import naming
from longmlm.model.classification import ClassificationObjective
from longmlm.temporary import replaced_file
from longmlm.training.objective import Objective


def read_vectors(file: str | None, objective: Objective) -> None:
    """Makes a frozen encoder keep the vectors of each document; it starts with those in the file, if there is one."""
    if isinstance(objective, ClassificationObjective) and objective.is_frozen:
        objective.cached = _content(_of_precision(file, objective), objective.model.device) if file else {}


def write_vectors(file: str | None, objective: Objective) -> None:
    """Replaces the file by all vectors that a frozen encoder has; raises OSError when the disk is full."""
    if file and isinstance(objective, ClassificationObjective) and objective.cached:
        path = _of_precision(file, objective)
        if objective.cached.keys() <= _content(path, torch.device("cpu")).keys():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as partial, naming(partial):
            save_file({key: vectors.cpu() for key, vectors in objective.cached.items()}, partial)


def _of_precision(file: str, objective: ClassificationObjective) -> Path:
    """Returns the file for vectors in the objective's precision, which `auto` resolves on each machine."""
    path = Path(file)
    return path.with_name(f"{path.stem}-{objective.precision}{path.suffix}")


def _content(file: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        return load_file(file, str(device))
    except (OSError, SafetensorError):  # there is none yet, or it is damaged
        return {}
