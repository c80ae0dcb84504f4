"""Reads what a launcher exports to the processes that it starts, and refuses settings that a run would ignore.

`accelerate launch` passes on most settings as variables, whether they come from a flag, a key of its YAML file or the
environment: `--mixed_precision bf16` and `mixed_precision: bf16` become ACCELERATE_MIXED_PRECISION=bf16.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch

import psutil
import torch

from longmlm.errors import TrainingError
from longmlm.processes import is_launched, num_started_processes
from longmlm.settings.pretrain import ComputePrecision
from longmlm.settings.shipped import LAUNCHES

MARKS = ("ACCELERATE_DYNAMO_MODE", "TORCHELASTIC_RUN_ID")  # exported by launchers and nobody else
VARIABLES = ("ACCELERATE_*", "FSDP_*", "MEGATRON_LM_*", "PARALLELISM_CONFIG_*", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
OFF = ("", "0", "no", "none", "false", "auto", "all", "default", "[]", "{}")
REMOVE = "remove it"


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values of variables whose name matches `pattern`; None allows all. Those in OFF always are."""

    pattern: str
    allowed: tuple[str, ...] | None = ()
    remedy: str = REMOVE


def check_launch_settings(precision: ComputePrecision) -> None:
    """Raises TrainingError for a variable that a run in this precision would ignore, or that contradicts its recipe.

    The error names the variable and the remedy. Variables of Accelerate without a rule do not affect a run.
    """
    has_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
    rules = _rules(precision, torch.cuda.is_available(), has_deepspeed)
    for name, value in sorted(os.environ.items()):
        if value.lower() in OFF or not any(fnmatch(name, pattern) for pattern in VARIABLES):
            continue
        rule = next((rule for rule in rules if fnmatch(name, rule.pattern)), None)
        if rule and rule.allowed is not None and value.lower() not in rule.allowed:
            place = "set by accelerate launch, or in the environment"
            raise TrainingError(f"{name} = {value} ({place}) is not supported: {rule.remedy}")


def _rules(precision: ComputePrecision, has_gpu: bool, has_deepspeed: bool) -> tuple[Rule, ...]:
    """Returns the rules; the first that matches applies."""
    zero_3 = f"use {LAUNCHES / 'zero-3.yaml'}, which partitions the parameters as well"
    deepspeed = f"launch with DeepSpeed (one of {LAUNCHES / 'zero-*.yaml'}), or remove it"
    accumulation = "remove it; recipe.batch_tokens and runtime.rows_per_micro_batch decide it"
    to_cpu = "to train on the CPU of a machine with a GPU, set CUDA_VISIBLE_DEVICES= as well"
    in_recipe = "remove it and set recipe.precision"
    of_deepspeed = ("ACCELERATE_DEEPSPEED_*", "ACCELERATE_GRADIENT_*")  # checked where DeepSpeed is set up
    return (
        Rule("ACCELERATE_USE_FSDP", (), zero_3),
        Rule("FSDP_*", (), zero_3),
        Rule("ACCELERATE_MIXED_PRECISION", (precision,), in_recipe),
        Rule("ACCELERATE_FP8_*", (), in_recipe),
        Rule("ACCELERATE_DYNAMO_*", (), "remove it; models are not compiled"),
        Rule("ACCELERATE_DEEPSPEED_ZERO3_INIT", (), "remove it; models are loaded in full and partitioned later"),
        Rule("ACCELERATE_DEEPSPEED_MOE_*"),
        *(Rule(pattern, None) for pattern in of_deepspeed if has_deepspeed),
        Rule("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", ("1",), accumulation),
        Rule("ACCELERATE_GRADIENT_CLIPPING", (), "remove it and set recipe.max_gradient_norm"),
        Rule("ACCELERATE_DEEPSPEED_*", (), deepspeed),
        Rule("ACCELERATE_USE_CPU", () if has_gpu else None, to_cpu),
        Rule("TORCH_ALLOW_TF32_*", () if has_gpu and precision == "no" else None, "unset it; recipe.precision is no"),
        Rule("ACCELERATE_TORCH_DEVICE", (), "unset it, and choose GPUs with CUDA_VISIBLE_DEVICES"),
        *map(Rule, ("*MEGATRON_LM*", "*PARALLELISM_CONFIG*", "ACCELERATE_DOWNCAST_*", "ACCELERATE_USE_SAGEMAKER")),
    )


def check_all_started() -> None:
    """Raises TrainingError if `accelerate launch` started a single process where it was to start several.

    To a single process it exports an address for the others only if there are to be some.
    """
    has_address = "MASTER_ADDR" in os.environ and "MASTER_ADDR" not in _environment_of_launcher()
    if has_address and MARKS[0] in os.environ and not is_launched() and num_started_processes() == 1:
        raise TrainingError(
            "accelerate launch was to start several processes and started only this one: use a file of "
            f"{LAUNCHES}, because distributed_type decides how many are started"
        )


def has_launcher() -> bool:
    """Returns whether accelerate launch or torchrun started this process."""
    return any(name in os.environ for name in MARKS)


def exported_threads() -> int | None:
    """Returns the OMP_NUM_THREADS that the user exported; None if there is none.

    Accelerate and torchrun set it for the processes that they start, so it is read from their own environment.
    """
    environment = _environment_of_launcher() if has_launcher() else os.environ
    number = environment.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is for nested regions
    return int(number) or None if number.isdecimal() else None


def _environment_of_launcher() -> Mapping[str, str]:
    """Returns the environment in which the parent of this process was started, empty if that is not allowed."""
    with suppress(psutil.Error):
        return psutil.Process(os.getppid()).environ()
    return {}
