"""What a checkpoint holds of a running model: taken into memory, whole and on the CPU, and put back.

Whoever shares it out, DDP or ZeRO at any stage and number of processes: what is taken is the same.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.generated import stock_state
from longmlm.runtime.watchdog import heartbeat
from longmlm.training import deepspeed_backend as zero


@dataclass(frozen=True, slots=True)
class Trained:
    """Model and optimizer in training; `parameters` are AdamW's in its order, which ZeRO's own groups do not tell."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    parameters: tuple[nn.Parameter, ...]
    accelerator: Accelerator

    @property
    def is_zero(self) -> bool:
        """Whether DeepSpeed shares out optimizer, gradients or parameters."""
        return self.accelerator.deepspeed_plugin is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stock weights, AdamW's state dict and each process' generator states, on the CPU and shared with nobody."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    generators: list[dict[str, Tensor]]


def take(trained: Trained) -> Snapshot | None:
    """Returns the snapshot in the main process, None in the others; every process must call it."""
    generators = gather_object([_generator_states()])
    weights, optimizer = _weights(trained), _optimizer(trained)
    if not trained.accelerator.is_main_process:
        return None
    return Snapshot(stock_state(trained.model, weights), optimizer, generators)


def _weights(trained: Trained) -> dict[str, Tensor]:
    """Returns the state dict; what was tied shares its memory here too."""
    copies: dict[int, Tensor] = {}
    live = trained.model.state_dict(keep_vars=True)
    for value in live.values():
        if id(value) not in copies:
            is_zero = trained.is_zero and isinstance(value, nn.Parameter)
            whole = zero.full_parameter(value) if is_zero else value.detach()
            copies[id(value)] = _kept(trained, whole)
    return {name: copies[id(value)] for name, value in live.items()}


def _optimizer(trained: Trained) -> dict[str, Any]:
    if not trained.is_zero:
        plain = trained.optimizer.state_dict() if trained.accelerator.is_main_process else {"state": {}}
        return {**plain, "state": {place: _copied(trained, one) for place, one in plain["state"].items()}}
    states = zero.moments(_zero_optimizer(trained), trained.parameters)
    return {"state": {place: _copied(trained, one) for place, one in enumerate(states)}, "param_groups": []}


def _copied(trained: Trained, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: _kept(trained, value) for key, value in state.items()}


def _kept(trained: Trained, value: Tensor) -> Tensor:
    heartbeat()
    return value.to("cpu", copy=True) if trained.accelerator.is_main_process else torch.empty(0)


def put_back(trained: Trained, optimizer: dict[str, Any], generators: dict[str, Tensor] | None) -> None:
    """Puts AdamW's state dict and this process' generators back; weights are there since the model was loaded.

    On another number of processes a generator may be absent: it stays as it was seeded, and only dropout depends on it.
    """
    if trained.is_zero:
        zero.put_back(_zero_optimizer(trained), trained.parameters, optimizer["state"])
    else:
        groups = trained.optimizer.state_dict()["param_groups"]
        trained.optimizer.load_state_dict({**optimizer, "param_groups": groups})
    if generators is not None:
        torch.set_rng_state(generators["cpu"])
        if torch.cuda.is_available() and "cuda" in generators:
            torch.cuda.set_rng_state(generators["cuda"])


def _zero_optimizer(trained: Trained) -> Any:
    return cast(Any, trained.accelerator.deepspeed_engine_wrapped).engine.optimizer


def _generator_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else states
