"""How ranks share one model and its optimizer: what the loop asks of a backend, and plain data parallelism."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast, runtime_checkable

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, Target
from longmlm.model.mlm import LossSum, MlmObjective
from longmlm.runtime.watchdog import heartbeat
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.training.optimizer import Optimizer

PARTITIONED_PARAMETERS = 3  # the stage of ZeRO
OptimizerState = dict[str, Any]  # an optimizer's state_dict(), whose layout is torch's; in fp16 also "scaler"


@runtime_checkable
class Backend(Protocol):
    """One model and optimizer on all ranks. What it gathers does not depend on the kind of backend.

    One update: for each micro-batch, in `accumulation`, forward and `backward`; then `step`.
    """

    @property
    def objective(self) -> MlmObjective:
        """The objective itself, not wrapped."""

    @property
    def settings(self) -> Mapping[str, object] | None:
        """The backend's own resolved settings, as DeepSpeed's JSON; None where it has none."""

    @property
    def can_repeat_passes(self) -> bool:
        """Whether a rank may repeat its forward and backward passes: not where ranks wait for each other in them."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that this rank has still to allocate before its first backward pass."""

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's state that this rank has still to allocate before its first update."""

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        """Returns what the objective returns, through the wrapper of this backend."""

    def accumulation(self, is_last: bool) -> AbstractContextManager[object]:
        """Returns the context of one micro-batch; gradients are averaged over ranks in the last one."""

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss`."""

    def step(self, learning_rate: float) -> Tensor:
        """Clips the gradients, updates unless their norm is not finite, and returns the norm before clipping.

        The norm stays on the device, so that the host need not wait.
        """

    def gather_weights(self) -> dict[str, Tensor]:
        """Returns the model's state dict in full, in fp32 on the CPU of the main process; tied weights share memory.

        Every rank must call it. Others than the main process get empty tensors.
        """

    def gather_optimizer(self) -> OptimizerState:
        """Returns the optimizer's state in full, by its parameter order, as `gather_weights` does the weights."""

    def restore_optimizer(self, state: OptimizerState) -> None:
        """Loads what `gather_optimizer` returned; each rank takes its own part."""


@dataclass(frozen=True, slots=True)
class PlainBackend:
    """One process, or DDP: every rank holds all parameters and all of the optimizer's state."""

    accelerator: Accelerator
    wrapped: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    max_gradient_norm: float
    can_repeat_passes: bool = True
    settings: None = None

    @classmethod
    def wrap(cls, accelerator: Accelerator, objective: MlmObjective, recipe: PretrainRecipe) -> Self:
        """Returns the backend around an objective, with a new optimizer and, in fp16, a loss scaler."""
        optimizer = Optimizer.of(objective, recipe)
        Optimizer.check_skips(accelerator.device)
        scaler = torch.amp.GradScaler(accelerator.device.type, enabled=recipe.precision == "fp16")
        return cls(accelerator, accelerator.prepare_model(objective), optimizer, scaler, recipe.max_gradient_norm)

    @property
    def objective(self) -> MlmObjective:
        return cast(MlmObjective, getattr(self.wrapped, "module", self.wrapped))

    @property
    def gradient_bytes(self) -> int:
        return self.optimizer.gradient_bytes

    @property
    def optimizer_bytes(self) -> int:
        return self.optimizer.state_bytes

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        return self.wrapped(batch)

    def accumulation(self, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last else self.accelerator.no_sync(self.wrapped)

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(self.scaler.scale(loss))

    def step(self, learning_rate: float) -> Tensor:
        """In fp16, also adapts the loss scale.

        DDP averages the gradients, so one that is not finite on any rank is not finite on every rank, and all ranks
        skip the update.
        """
        self.scaler.unscale_(self.optimizer.torch_optimizer)
        norm = nn.utils.clip_grad_norm_(self.wrapped.parameters(), self.max_gradient_norm)
        self.optimizer.update(learning_rate, norm)
        self.scaler.update()
        self.optimizer.torch_optimizer.zero_grad(set_to_none=True)
        return norm

    def gather_weights(self) -> dict[str, Tensor]:
        return gather_state_dict(self.objective.model, Tensor.detach, self.accelerator.is_main_process)

    def gather_optimizer(self) -> OptimizerState:
        if not self.accelerator.is_main_process:
            return {}
        content = self.optimizer.torch_optimizer.state_dict()
        states = {index: cpu_copies(state, True) for index, state in content["state"].items()}
        return {**content, "state": states, **({"scaler": scaler} if (scaler := self.scaler.state_dict()) else {})}

    def restore_optimizer(self, state: OptimizerState) -> None:
        """Keeps the parameter groups of the recipe: DeepSpeed's backend does not save any."""
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        groups = self.optimizer.torch_optimizer.state_dict()["param_groups"]
        self.optimizer.torch_optimizer.load_state_dict({**state, "param_groups": groups})


def gather_state_dict(model: PreTrainedModel, full: Callable[[Tensor], Tensor], is_kept: bool) -> dict[str, Tensor]:
    """Returns CPU copies of what `full` makes of each entry of the state dict; tied entries share one copy."""
    live = model.state_dict(keep_vars=True)
    distinct = {id(value): value for value in live.values()}
    copies = {key: _cpu_copy(full(value), is_kept) for key, value in distinct.items()}
    return {name: copies[id(value)] for name, value in live.items()}


def cpu_copies(state: dict[str, Tensor], is_kept: bool) -> dict[str, Tensor]:
    """Returns CPU copies of the tensors, empty ones where they are not kept."""
    return {name: _cpu_copy(value, is_kept) for name, value in state.items()}


def _cpu_copy(value: Tensor, is_kept: bool) -> Tensor:
    heartbeat()
    return value.to("cpu", copy=True) if is_kept else torch.empty(0)


def is_launched_with_deepspeed() -> bool:
    """Returns whether Accelerate's launcher chose DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def zero_stage(accelerator: Accelerator) -> int:
    """Returns the stage of ZeRO; 0 without DeepSpeed."""
    plugin = accelerator.deepspeed_plugin
    return 0 if plugin is None else cast(DeepSpeedPlugin, plugin).zero_stage


def new_backend(accelerator: Accelerator, objective: MlmObjective, recipe: PretrainRecipe) -> Backend:
    """Returns the backend that was launched, around an objective, with a new optimizer."""
    if not zero_stage(accelerator):
        return PlainBackend.wrap(accelerator, objective, recipe)
    from longmlm.training.deepspeed_backend import DeepSpeedBackend  # most runs need none of it

    return DeepSpeedBackend.wrap(accelerator, objective, recipe)
