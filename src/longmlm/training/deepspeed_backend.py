"""DeepSpeed's ZeRO as the launch chose it: its settings, its backward pass, its shares gathered and put back."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from torch import Tensor, nn

from longmlm.errors import TrainingError

MOMENTS = ("exp_avg", "exp_avg_sq")
TUNED = {
    "contiguous_gradients": True,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 200_000_000,
    "allgather_partitions": True,
    "allgather_bucket_size": 200_000_000,
    "round_robin_gradients": False,
    "sub_group_size": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}


def plugin_of_launch(max_gradient_norm: float) -> DeepSpeedPlugin | None:
    """Returns DeepSpeed's settings, None without it: stage and offload from the launch, all else from the recipe.

    Parameters and moments are fp32 on every backend and accumulation is ours, so DeepSpeed's own precision and batch
    sizes are set to say so. Raises TrainingError where the launch sets something else, and without the library.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true":
        return None
    if find_spec("deepspeed") is None:
        raise TrainingError("the launch asks for DeepSpeed, which is not installed: pip install 'longmlm[deepspeed]'")
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # it calls what torch has renamed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo does, and needs no compiler
    plugin = DeepSpeedPlugin(zero3_init_flag=False)
    settings = plugin.deepspeed_config
    settings["steps_per_print"] = 2**31
    _set(settings, _recipe_settings(max_gradient_norm, int(os.environ.get("WORLD_SIZE", "1"))))
    for name in {"optimizer", "scheduler"} & settings.keys():
        raise TrainingError(f"DeepSpeed's configuration sets {name}: take it out, the recipe decides it")
    chosen = {key: value for key, value in settings["zero_optimization"].items() if value != "auto"}
    devices = {chosen.get(f"offload_{what}", {}).get("device", "none") for what in ("optimizer", "param")}
    if chosen.get("stage") not in (1, 2, 3) or not devices <= {"none", "cpu"}:
        raise TrainingError("the launch asks DeepSpeed for what is not done here: take stage 1, 2 or 3, offload to cpu")
    settings["zero_optimization"] = TUNED | chosen
    return plugin


def _recipe_settings(max_gradient_norm: float, num_processes: int) -> dict[str, Any]:
    return {
        "train_batch_size": num_processes,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_gradient_norm,
        "gradient_predivide_factor": 1.0,
        "prescale_gradients": False,
        "communication_data_type": "fp32",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
    }


def _set(settings: dict[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in wanted.items():
        if isinstance(value, dict):
            _set(settings.setdefault(key, {}), value, f"{key}.")
        elif settings.get(key, "auto") in ("auto", value):
            settings[key] = value
        else:
            raise TrainingError(
                f"DeepSpeed's configuration sets {prefix}{key} = {settings[key]}, the recipe means {value}: take it "
                "out there, the recipe decides it"
            )


def prepared(
    accelerator: Accelerator, objective: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns engine and optimizer, shared out; AdamW's state is there from the first, which DeepSpeed counts on."""
    engine, wrapped = accelerator.prepare(objective, optimizer)
    shared = wrapped.optimizer
    for flat in getattr(shared, "fp32_partitioned_groups_flat", None) or shared.single_partition_of_fp32_groups:
        shared.optimizer.state[flat] = {"step": torch.zeros((), device=flat.device)}
        shared.optimizer.state[flat] |= {key: torch.zeros_like(flat, requires_grad=False) for key in MOMENTS}
    if not _is_sharded(next(engine.parameters())):
        shared._lazy_init_hp_params_optimizer_state()  # noqa: SLF001  # it links one group too few after the first update
    return engine, wrapped


def _is_sharded(parameter: nn.Parameter) -> bool:
    """Says whether parameters are shared out, as in stage 3, not optimizer and gradients alone."""
    return hasattr(parameter, "ds_id")


def backward(accelerator: Accelerator, loss: Tensor, is_last: bool) -> float:
    """Adds the gradients of `loss`; after the last micro-batch makes the update, and returns the gradient's norm.

    The norm is infinite, and no update was made, where a gradient is not finite.
    """
    engine = accelerator.deepspeed_engine_wrapped
    assert engine is not None
    engine.backward(loss, sync_gradients=is_last)
    return float(engine.get_global_grad_norm()) if is_last else 0.0


def full_parameter(parameter: nn.Parameter) -> Tensor:
    """Returns a parameter whole, in fp32; every process must call it."""
    from deepspeed.utils import safe_get_full_fp32_param

    return cast(Tensor, safe_get_full_fp32_param(parameter))


def moments(optimizer: Any, parameters: Sequence[nn.Parameter]) -> Iterator[dict[str, Tensor]]:
    """Yields the state of AdamW for each parameter, whole; every process must take them all."""
    from deepspeed.utils import safe_get_full_optimizer_state

    step = next(iter(optimizer.optimizer.state.values()))["step"]
    for parameter in parameters:
        whole = {key: cast(Tensor, safe_get_full_optimizer_state(parameter, key)) for key in MOMENTS}
        yield {"step": step, **whole}


def put_back(optimizer: Any, parameters: Sequence[nn.Parameter], states: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Gives each process its share of the whole states of AdamW, of which there are none before the first update."""
    if not states:
        return
    from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

    for state in optimizer.optimizer.state.values():
        state["step"].copy_(states[0]["step"])
    for place, parameter in enumerate(parameters):
        for key in MOMENTS:
            value = states[place][key].to(parameter.device)
            if _is_sharded(parameter):
                safe_set_local_optimizer_state(parameter, _share(value, parameter), key)
            else:
                safe_set_full_optimizer_state(parameter, value, key)


def _share(value: Tensor, parameter: Any) -> Tensor:
    """Returns this process' share of a whole tensor; the last share is padded with zeros."""
    size, rank = parameter.ds_tensor.ds_numel, torch.distributed.get_rank(parameter.ds_process_group)
    mine = value.flatten()[rank * size : (rank + 1) * size]
    return nn.functional.pad(mine, (0, size - mine.numel()))
