"""DeepSpeed's ZeRO: optimizer state (stage 1), gradients (2) and parameters (3) partitioned over the ranks.

Stages 1 and 2 concatenate the parameters of a group into one flat tensor and cut that into a partition per rank, so a
partition may begin inside a parameter. Parameters A (6 numbers) and B (4) on 2 ranks, 5 numbers each:

    flat        a a a a a a b b b b
    partition   0 0 0 0 0 1 1 1 1 1      rank 0 updates a[0:5], rank 1 updates a[5:6] and b[0:4]

Stage 3 cuts each parameter by itself, and pads the last partition with zeros:

    A   0 0 0 1 1 1                      3 numbers each
    C   0 0 0 1 1 .                      5 numbers: partitions of 3, the last of them padded

Checkpoints hold full tensors. They are gathered and partitioned again by parameter, never by partition, so a run
resumes under a different stage, on a different number of ranks, or without DeepSpeed.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from torch import Tensor, nn

from longmlm.batches.collate import MlmBatch, Target
from longmlm.errors import TrainingError
from longmlm.model.mlm import LossSum, MlmObjective
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.shipped import LAUNCHES
from longmlm.training.backend import (
    PARTITIONED_PARAMETERS,
    OptimizerState,
    cpu_copies,
    gather_state_dict,
    is_launched_with_deepspeed,
    zero_stage,
)
from longmlm.training.optimizer import Optimizer

FIXED = {
    "gradient_predivide_factor": 1.0,
    "prescale_gradients": False,
    "communication_data_type": "fp32",
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "wall_clock_breakdown": False,
}
BUCKETS = {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000}


@dataclass(frozen=True, slots=True)
class DeepSpeedBackend:
    """A DeepSpeed engine; `parameters` are the optimizer's in its order, which ZeRO's flat groups do not keep.

    `gradient_bytes` are those of a rank: of a partition from stage 2 on.
    """

    accelerator: Accelerator
    engine: Any  # deepspeed.DeepSpeedEngine, an extra that need not be installed
    parameters: tuple[nn.Parameter, ...]
    gradient_bytes: int
    optimizer_bytes: int = 0  # its state is allocated already
    can_repeat_passes: bool = False  # ranks communicate in them

    @classmethod
    def wrap(cls, accelerator: Accelerator, objective: MlmObjective, recipe: PretrainRecipe) -> Self:
        """Returns the backend around an objective, with a new optimizer whose state is partitioned from the start.

        Raises TrainingError in fp16, whose losses it does not scale.
        """
        if recipe.precision == "fp16":
            raise TrainingError(
                "recipe.precision is fp16, which DeepSpeed's backend does not support: choose bf16 or no, or launch "
                f"with {LAUNCHES / 'ddp.yaml'}"
            )
        optimizer, stage = Optimizer.of(objective, recipe), zero_stage(accelerator)
        parameters, gradient_bytes = optimizer.parameters, optimizer.gradient_bytes
        engine, wrapped = accelerator.prepare(objective, optimizer.torch_optimizer)
        zero = wrapped.optimizer
        for flat in getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups:
            zero.optimizer.state[flat] = {"step": torch.zeros((), device=flat.device)}
            zero.optimizer.state[flat] |= {key: torch.zeros_like(flat, requires_grad=False) for key in Optimizer.STATES}
        if stage != PARTITIONED_PARAMETERS:
            # Must run before the first update: DeepSpeed would link one group too few after it.
            zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001
        cast(MlmObjective, engine.module).has_full_parameters = stage != PARTITIONED_PARAMETERS
        return cls(accelerator, engine, parameters, gradient_bytes // (accelerator.num_processes if stage > 1 else 1))

    @property
    def objective(self) -> MlmObjective:
        return self.engine.module

    @property
    def settings(self) -> Mapping[str, object]:
        return cast(DeepSpeedPlugin, self.accelerator.deepspeed_plugin).deepspeed_config

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        return self.engine(batch)

    def accumulation(self, is_last: bool) -> AbstractContextManager[object]:
        self.engine.set_gradient_accumulation_boundary(is_boundary=is_last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self, learning_rate: float) -> Tensor:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        return torch.as_tensor(self.engine.get_global_grad_norm(), device=self.accelerator.device)

    def gather_weights(self) -> dict[str, Tensor]:
        return gather_state_dict(self.objective.model, _full_value, self.accelerator.is_main_process)

    def gather_optimizer(self) -> OptimizerState:
        is_main = self.accelerator.is_main_process
        return {"state": {index: cpu_copies(state, is_main) for index, state in enumerate(self._full_states())}}

    def _full_states(self) -> Iterator[dict[str, Tensor]]:
        from deepspeed.utils import safe_get_full_optimizer_state

        step = next(iter(self.engine.optimizer.optimizer.state.values()))["step"]
        for parameter in self.parameters:
            full = {key: cast(Tensor, safe_get_full_optimizer_state(parameter, key)) for key in Optimizer.STATES}
            yield {"step": step, **full}

    def restore_optimizer(self, state: OptimizerState) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        states = state["state"]
        for own in self.engine.optimizer.optimizer.state.values() if states else ():
            own["step"].copy_(states[0]["step"])
        for index, parameter in enumerate(self.parameters if states else ()):
            for key in Optimizer.STATES:
                value = states[index][key].to(parameter.device)
                if hasattr(parameter, "ds_id"):  # the parameter itself is partitioned, as in stage 3
                    safe_set_local_optimizer_state(parameter, _partition(value, parameter), key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)


def _full_value(value: Tensor) -> Tensor:
    """Returns an entry of the state dict in full; buffers are never partitioned."""
    from deepspeed.utils import safe_get_full_fp32_param

    return cast(Tensor, safe_get_full_fp32_param(value)) if isinstance(value, nn.Parameter) else value.detach()


def _partition(value: Tensor, parameter: Any) -> Tensor:
    """Returns this rank's partition of a full tensor in stage 3: 5 numbers on 2 ranks are 3 and 2 with one zero."""
    size, rank = parameter.ds_tensor.ds_numel, torch.distributed.get_rank(parameter.ds_process_group)
    own = value.flatten()[rank * size : (rank + 1) * size]
    return nn.functional.pad(own, (0, size - own.numel()))


def plugin_of_launch(max_gradient_norm: float) -> DeepSpeedPlugin | None:
    """Returns DeepSpeed's settings, None without it: the launch sets stage and offload, the recipe the rest.

    Parameters and moments are fp32 on every backend and micro-batches are accumulated by the training loop, so
    DeepSpeed's own precision and batch sizes are set accordingly. Raises TrainingError where the launch sets something
    else, and where DeepSpeed is not installed.
    """
    if not is_launched_with_deepspeed():
        return None
    if find_spec("deepspeed") is None:
        raise TrainingError("the launch uses DeepSpeed, which is not installed: pip install 'longmlm[deepspeed]'")
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or it would warn that it found no GPU
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # it calls functions that torch renamed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo serves as well, and needs no compiler
    plugin = DeepSpeedPlugin(zero3_init_flag=False)
    settings = plugin.deepspeed_config
    settings["steps_per_print"] = 2**31
    required = {
        "train_batch_size": int(os.environ.get("WORLD_SIZE", "1")),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_gradient_norm,
    }
    _set(settings, FIXED | required)
    for precision in ("fp16", "bf16"):
        _set(settings.setdefault(precision, {}), {"enabled": False}, f"{precision}.")
    for name in {"optimizer", "scheduler"} & settings.keys():
        raise TrainingError(f"DeepSpeed's configuration sets {name}, which the recipe decides: remove it there")
    chosen = {key: value for key, value in settings["zero_optimization"].items() if value != "auto"}
    devices = {chosen.get(f"offload_{what}", {}).get("device", "none") for what in ("optimizer", "param")}
    if chosen.get("stage") not in (1, 2, 3) or not devices <= {"none", "cpu"}:
        raise TrainingError(
            "the launch sets a ZeRO stage or an offload that is not supported: use stage 1, 2 or 3, offload to cpu"
        )
    # Only in stage 3, as by default: in 1 and 2 it has corrupted gradients on GPUs (DeepSpeed's issues 7188 and 8061).
    is_overlapped = chosen["stage"] == PARTITIONED_PARAMETERS
    settings["zero_optimization"] = BUCKETS | {"overlap_comm": is_overlapped} | chosen
    return plugin


def _set(settings: dict[str, Any], required: Mapping[str, Any], prefix: str = "") -> None:  # Any: DeepSpeed's JSON
    for key, value in required.items():
        if settings.get(key, "auto") not in ("auto", value):
            raise TrainingError(
                f"DeepSpeed's configuration sets {prefix}{key} = {settings[key]}, the recipe {value}: remove it there, "
                "the recipe decides it"
            )
        settings[key] = value
