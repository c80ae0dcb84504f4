"""Tensors of a checkpoint that are not its weights: checked before a run resumes with them."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longmlm.errors import CheckpointError, counted, system_error
from longmlm.runtime.launch import restore_generators
from longmlm.training.backend import OptimizerState
from longmlm.training.optimizer import Optimizer

OTHER_CONTENT = (AttributeError, LookupError, RuntimeError, TypeError)  # raised where a file holds something else


def read_optimizer(path: Path, model: nn.Module, num_updates: int, is_scaled: bool) -> OptimizerState:
    """Returns the optimizer's state; raises CheckpointError unless it is the parameters' after `num_updates`.

    With `is_scaled`, the loss scaler's state is part of it.
    """
    content = _read(path)
    try:
        _check_states(content["state"], model, num_updates)
        if is_scaled:
            _check_scaler(content["scaler"])
    except ValueError as problem:
        raise _damaged(path, str(problem)) from problem
    except OTHER_CONTENT as error:
        raise _damaged(path, "it holds no state of an optimizer") from error
    return content


def read_generators(path: Path) -> None:
    """Restores the generators of this rank; raises CheckpointError if the file holds anything else."""
    content = _read(path)
    try:
        restore_generators(content)
    except OTHER_CONTENT as error:
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


def _check_states(states: dict[int, dict[str, Any]], model: nn.Module, num_updates: int) -> None:
    """Raises ValueError for states that the optimizer cannot have; other content raises one of OTHER_CONTENT."""
    if not num_updates and states == {}:
        return
    shapes = _shapes(model)
    # a parameter without a gradient, such as the sinusoidal positions of RoFormer, has no state
    if not states or not states.keys() <= set(range(len(shapes))):
        raise ValueError(f"it is of {counted(len(states), 'parameter')}, the model has {len(shapes)}")
    for index, state in states.items():
        for key in Optimizer.STATES:
            value = state[key]
            if not value.is_floating_point() or tuple(value.shape) != shapes[index]:
                raise ValueError(f"{key} of parameter {index} is not a floating-point tensor of shape {shapes[index]}")
            if not value.isfinite().all() or (key in Optimizer.NEVER_NEGATIVE and (value < 0).any()):
                raise ValueError(f"{key} of parameter {index} holds numbers that no training gives")
        if state["step"] != num_updates:
            raise ValueError(f"parameter {index} is of step {state['step']}, the checkpoint of {num_updates}")


def _shapes(model: nn.Module) -> list[tuple[int, ...]]:
    """Returns the shapes of the optimizer's parameters in its order: matrices first, see Optimizer.of."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shapes = [tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in trained]  # if partitioned
    return sorted(shapes, key=lambda shape: len(shape) <= 1)


def _check_scaler(state: dict[str, Any]) -> None:
    expected = torch.amp.GradScaler("cpu").state_dict()
    is_valid = all(type(state[key]) is type(value) and 0 <= state[key] < math.inf for key, value in expected.items())
    if not is_valid or not state["scale"]:
        raise ValueError("it holds no state of the loss scaler")
