"""Read what `accelerate launch` and environment variables set, and refuse what a run would not follow.

Accelerate takes a setting from a flag, a key of its YAML file or an environment variable. All three have the same name
except for a prefix: `--mixed_precision`, `mixed_precision:`, `ACCELERATE_MIXED_PRECISION`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import dropwhile
from pathlib import Path

import psutil
import torch
from accelerate.commands.config import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser

from longmlm.errors import TrainingError
from longmlm.settings.pretrain import ComputePrecision
from longmlm.settings.shipped import LAUNCHES

LAUNCHERS = (  # scripts and modules
    "accelerate",
    "accelerate-launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
)
PREFIXED = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}  # as accelerate launch does
VARIABLES = ("FSDP_*", "MEGATRON_LM_*", "PARALLELISM_CONFIG_*", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
OFF = ("", "0", "no", "none", "false", "auto", "all", "default", "[]", "{}")
PROCESSES = (  # settings that start processes, choose their devices and show their output
    "compute_environment", "config_file", "debug", "enable_cpu_affinity", "gpu_ids", "log_dir", "machine_rank",
    "main_process_ip", "main_process_port", "main_training_function", "max_restarts", "module", "monitor_interval",
    "multi_gpu", "no_python", "num_machines", "num_processes", "quiet", "rdzv_*", "role", "same_network", "tee",
    "training_script*", "use_deepspeed",
)  # fmt: skip
DEEPSPEED = ("deepspeed_*", "gradient_*", "offload_*", "zero_stage", "zero3_save_16bit_model")

ZERO_3 = f"use {LAUNCHES / 'zero-3.yaml'}, which partitions the parameters as well"
REMOVE = "remove it"


@dataclass(frozen=True, slots=True)
class LaunchSetting:
    """A setting of the launch: its name without prefix, its value, and where and how the user wrote it."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values of settings whose name matches `pattern`; None allows all. Switched off is always allowed."""

    pattern: str
    allowed: tuple[str, ...] | None = ()
    remedy: str = REMOVE


def check_launch_settings(precision: ComputePrecision) -> None:
    """Raises TrainingError for a setting that a run in this precision would ignore, or that contradicts its recipe.

    The error names the setting, where it was set, and the remedy.
    """
    has_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
    rules = _rules(precision, torch.cuda.is_available(), has_deepspeed)
    for setting in (*launcher_settings(), *_variables()):
        rule = next((rule for rule in rules if fnmatch(setting.name, rule.pattern)), None)
        if setting.value in OFF or (rule and (rule.allowed is None or setting.value in rule.allowed)):
            continue
        if rule or "environment" not in setting.origin:  # Accelerate's other variables do not affect a run
            raise TrainingError(f"{setting.origin} is not supported: {rule.remedy if rule else REMOVE}")


def _rules(precision: ComputePrecision, has_gpu: bool, has_deepspeed: bool) -> tuple[Rule, ...]:
    """Returns the rules; the first that matches applies."""
    zero = f"launch with DeepSpeed (one of {LAUNCHES / 'zero-*.yaml'}), or remove it"
    accumulation = "remove it; recipe.batch_tokens and runtime.rows_per_micro_batch decide it"
    to_cpu = "to train on the CPU of a machine with a GPU, set CUDA_VISIBLE_DEVICES= as well"
    clipping = "remove it and set recipe.max_gradient_norm"
    return (
        Rule("distributed_type", ("multi_gpu", "deepspeed", "multi_cpu"), f"{ZERO_3}, or ddp.yaml there"),
        Rule("use_fsdp", (), ZERO_3),
        Rule("fsdp_*", (), ZERO_3),
        Rule("mixed_precision", (precision,), "remove it and set recipe.precision"),
        Rule("fp8_*", (), "remove it and set recipe.precision"),
        Rule("dynamo_*", (), "remove it; models are not compiled"),
        Rule("*zero3_init*", (), "remove it; models are loaded in full and partitioned later"),
        Rule("deepspeed_moe_layer_cls_names"),
        *(Rule(pattern, None) for pattern in DEEPSPEED if has_deepspeed),  # checked where DeepSpeed is set up
        Rule("gradient_accumulation_steps", ("1",), accumulation),
        Rule("gradient_clipping", (), clipping),
        *(Rule(pattern, (), zero) for pattern in DEEPSPEED),
        *(Rule(name, () if has_gpu else None, to_cpu) for name in ("cpu", "use_cpu")),
        Rule("num_cpu_threads_per_process", None if has_gpu else (), "remove it and set runtime.num_threads"),
        Rule("torch_allow_tf32_*", () if has_gpu and precision == "no" else None, "unset it; recipe.precision is no"),
        Rule("torch_device", (), "unset it, and choose GPUs with CUDA_VISIBLE_DEVICES"),
        *map(Rule, ("downcast_*", "*megatron_lm*", "mpirun_*", "*parallelism_config*", "tpu_*", "use_sagemaker")),
        *(Rule(pattern, None) for pattern in PROCESSES),
    )


def arguments_of_launcher() -> list[str] | None:
    """Returns the arguments of the `accelerate launch` that started this process; None if its parent is another one.

    The parent's command line is that launcher's if Python runs it there, and if it ends with the words of this process.
    """
    try:
        program, *arguments = _without_interpreter(psutil.Process(os.getppid()).cmdline())
        script, *own = _without_interpreter(sys.orig_argv)
    except (psutil.Error, ValueError):  # ValueError: without a program, as in an interactive interpreter
        return None
    is_launcher = Path(program).name in LAUNCHERS and len(arguments) > len(own)
    words = arguments[len(arguments) - len(own) - 1 :]
    return arguments if is_launcher and [Path(words[0]).name, *words[1:]] == [Path(script).name, *own] else None


def _without_interpreter(command: Sequence[str]) -> list[str]:
    """Returns a command line from its script or module on."""
    return [*dropwhile(lambda word: word.startswith("-"), command[1:])]


def launcher_settings() -> tuple[LaunchSetting, ...]:
    """Returns the flags of the `accelerate launch` that started this process, and keys of its file that no flag sets.

    They are read from its command line, because it passes few of them on. Under another launcher there are none.
    """
    if (arguments := arguments_of_launcher()) is None:
        return ()
    options, _ = launch_command_parser().parse_known_args(arguments[arguments[:1] == ["launch"] :])
    flags = {name: getattr(options, name) for name in sorted(getattr(options, "nondefault", ()))}
    given = [_setting(name, value, f"--{name}", "on accelerate launch's command line") for name, value in flags.items()]
    file = Path(options.config_file or default_config_file)
    keys = [] if options.cpu or not file.is_file() else _keys(file)
    return (*given, *(_setting(name, value, name, f"in {file}") for name, value in keys if name not in flags))


def exported_threads() -> int | None:
    """Returns the OMP_NUM_THREADS that the user exported; None if there is none.

    Accelerate and torchrun set it for the processes that they start, so it is read from their own environment.
    """
    environment = dict(os.environ)
    if "TORCHELASTIC_RUN_ID" in os.environ or arguments_of_launcher() is not None:
        try:
            environment = psutil.Process(os.getppid()).environ()
        except psutil.Error:
            return None
    number = environment.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is for nested regions
    return int(number) or None if number.isdecimal() else None


def _keys(file: Path) -> Iterator[tuple[str, object]]:
    """Yields the keys of Accelerate's file under the names of the flags."""
    for section, content in vars(load_config_from_file(str(file))).items():
        if not isinstance(content, dict):
            yield section, content
            continue
        for key, value in content.items():
            prefix = PREFIXED.get(section, "")
            yield key if key.startswith(prefix) else prefix + key, value


def _variables() -> Iterator[LaunchSetting]:
    for name, value in sorted(os.environ.items()):
        if name.startswith("ACCELERATE_") or any(fnmatch(name, pattern) for pattern in VARIABLES):
            yield _setting(name.removeprefix("ACCELERATE_").lower(), value, name, "in the environment")


def _setting(name: str, value: object, written: str, place: str) -> LaunchSetting:
    text = str(getattr(value, "value", value))  # enumerations of Accelerate's file
    return LaunchSetting(name, text.lower(), f"{written} = {text} {place}")
