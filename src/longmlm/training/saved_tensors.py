"""Tensors of a checkpoint that are not its weights: checked before a run resumes with them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longmlm.errors import CheckpointError, counted, system_error
from longmlm.runtime.launch import restore_generators
from longmlm.training.backend import OptimizerState
from longmlm.training.optimizer import Optimizer

SCALER = {
    "scale": float,
    "growth_factor": float,
    "backoff_factor": float,
    "growth_interval": int,
    "_growth_tracker": int,
}


def read_optimizer(path: Path, model: nn.Module, num_updates: int, is_scaled: bool) -> OptimizerState:
    """Returns the optimizer's state; raises CheckpointError unless it is the parameters' after `num_updates`.

    With `is_scaled`, the loss scaler's state is part of it.
    """
    content = _read(path)
    if not isinstance(content, dict) or not isinstance(content.get("state"), dict):
        raise _damaged(path, "it holds no state of an optimizer")
    for problem in _problems(content["state"], _shapes(model), num_updates):
        raise _damaged(path, problem)
    if is_scaled and not _is_scaler(content.get("scaler")):
        raise _damaged(path, "it holds no state of the loss scaler")
    return content


def read_generators(path: Path) -> None:
    """Restores the generators of this rank; raises CheckpointError if the file holds anything else."""
    content = _read(path)
    if not isinstance(content, dict) or "cpu" not in content:
        raise _damaged(path, "it holds no states of generators")
    try:
        restore_generators(content)
    except (RuntimeError, TypeError, AttributeError) as error:  # of torch, for another type, size or content
        raise _damaged(path, "it holds no states of generators") from error


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # from pickle, zipfile, torch: no two damages raise the same type
        if found := system_error(error, path):
            raise found from error
        raise _damaged(path, "it was cut short, or holds more than tensors") from error


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {problem}; move {path.parent} away to go on from another checkpoint")


def _shapes(model: nn.Module) -> list[tuple[int, ...]]:
    """Returns the shapes of the optimizer's parameters in its order: matrices first, see new_optimizer."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shapes = [tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in trained]  # if partitioned
    return sorted(shapes, key=lambda shape: len(shape) <= 1)


def _problems(state: dict[Any, Any], shapes: Sequence[tuple[int, ...]], num_updates: int) -> Iterator[str]:
    if not num_updates and not state:
        return
    # a parameter without a gradient, such as the sinusoidal positions of RoFormer, has no state
    if not state or not state.keys() <= set(range(len(shapes))):
        yield f"it is of {counted(len(state), 'parameter')}, the model has {len(shapes)}"
        return
    for index, shape in ((index, shapes[index]) for index in sorted(state)):
        moments = state[index] if isinstance(state[index], dict) else {}
        for key in Optimizer.STATES:
            value = moments.get(key)
            if not isinstance(value, Tensor) or not value.is_floating_point() or tuple(value.shape) != shape:
                yield f"{key} of parameter {index} is not a floating-point tensor of shape {shape}"
            elif not value.isfinite().all() or (key in Optimizer.NEVER_NEGATIVE and (value < 0).any()):
                yield f"{key} of parameter {index} holds numbers that no training gives"
        step = moments.get("step")
        if not isinstance(step, Tensor | int | float) or (isinstance(step, Tensor) and step.numel() != 1):
            yield f"parameter {index} has no step"
        elif float(step) != num_updates:
            yield f"parameter {index} is of step {float(step):g}, the checkpoint of {num_updates}"


def _is_scaler(content: object) -> bool:
    if not isinstance(content, dict) or any(type(content.get(key)) is not kind for key, kind in SCALER.items()):
        return False
    return all(0 <= content[key] < math.inf for key in SCALER) and content["scale"] > 0
