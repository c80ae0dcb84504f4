"""A launch may set what starts processes; what else a run would ignore, or obey against its recipe, is refused."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

from longmlm.errors import TrainingError
from longmlm.runtime import launcher
from longmlm.runtime.launch import launch
from longmlm.runtime.launcher import MARKS, check_all_started, check_launch_settings, exported_threads
from tests.support.launching import launch_as_second_of_two
from tests.support.tiny import with_fresh_process_state
from tests.support.training import ROOT

SHIPPED = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
WRITTEN_BY_ACCELERATE_CONFIG = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
Launched = Callable[..., None]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launched:
    """Gives this process the environment that `accelerate launch` makes from flags, a file and variables."""
    user = {key: value for key, value in os.environ.items() if not key.startswith(("ACCELERATE_", "FSDP_", "MASTER_"))}
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(environ=lambda: user))
    monkeypatch.setattr(launcher.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", str(tmp_path / "absent.yaml"))

    def start(*flags: str, yaml: str = "", **variables: str) -> None:
        if yaml:
            (tmp_path / "launch.yaml").write_text(yaml, encoding="utf-8")
            flags = ("--config_file", str(tmp_path / "launch.yaml"), *flags)
        monkeypatch.setattr(os, "environ", user | variables)
        words = ["--main_process_port", "0", *flags, "pretrain.py"]
        options, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
        if options.use_deepspeed:
            options.deepspeed_fields_from_accelerate_config = ""
            _, environment = prepare_deepspeed_cmd_env(options)
        elif options.use_fsdp or options.use_megatron_lm or options.multi_gpu:
            environment = prepare_multi_gpu_env(options)
        else:
            _, environment = prepare_simple_launcher_cmd_env(options)
        monkeypatch.setattr(os, "environ", environment)

    return start


def in_file(section: str, distributed_type: str = "MULTI_GPU") -> str:
    return f"distributed_type: {distributed_type}\nnum_processes: 2\n{section}"


REFUSED = {  # of a launch: a flag, or the content of the file, and what its refusal names
    "--dynamo_backend inductor --num_processes 1": "ACCELERATE_DYNAMO_BACKEND = INDUCTOR .*not compiled",
    "--mixed-precision bf16 --num_processes 1": "ACCELERATE_MIXED_PRECISION = bf16 .*recipe.precision",
    "--use_fsdp --num_processes 2": "ACCELERATE_USE_FSDP = true .*zero-3.yaml",
    "--use_megatron_lm --num_processes 2": "ACCELERATE_USE_MEGATRON_LM = true ",
    in_file("", "FSDP"): "ACCELERATE_USE_FSDP = true .*zero-3.yaml",
    in_file("", "MEGATRON_LM"): "ACCELERATE_USE_MEGATRON_LM = true ",
    in_file("mixed_precision: fp16"): "ACCELERATE_MIXED_PRECISION = fp16 .*recipe.precision",
    in_file("dynamo_config: {dynamo_backend: INDUCTOR}"): "ACCELERATE_DYNAMO_BACKEND = INDUCTOR ",
    in_file("dynamo_config: {dynamo_mode: max-autotune}"): "ACCELERATE_DYNAMO_MODE = max-autotune ",
    in_file("parallelism_config: {parallelism_config_tp_size: 2}"): "ACCELERATE_USE_PARALLELISM_CONFIG = true ",
    in_file("deepspeed_config: {zero_stage: 3, zero3_init_flag: true}", "DEEPSPEED"): "ZERO3_INIT = true ",
}
VARIABLES = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
    "ACCELERATE_USE_FSDP": "true",
    "ACCELERATE_USE_MEGATRON_LM": "true",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
    "ACCELERATE_USE_SAGEMAKER": "true",
    "ACCELERATE_FP8_BACKEND": "TE",
    "ACCELERATE_TORCH_DEVICE": "meta",
    "ACCELERATE_DOWNCAST_BF16": "yes",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "FSDP_VERSION": "2",
    "MEGATRON_LM_TP_DEGREE": "2",
    "PARALLELISM_CONFIG_CP_SIZE": "2",
}


def refusal() -> str:
    with pytest.raises(TrainingError) as raised:
        check_launch_settings("no")
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("given", "named"), REFUSED.items())
def test_what_a_launch_sets_and_a_run_would_not_follow_is_refused(launched: Launched, given: str, named: str) -> None:
    launched(*given.split()) if given.startswith("-") else launched(yaml=given)
    assert re.search(named, refusal())


def test_a_variable_that_a_run_would_not_follow_is_refused(launched: Launched) -> None:
    launched("--num_processes", "1")
    check_launch_settings("no")
    for name, value in VARIABLES.items():
        os.environ[name], before = value, os.environ.get(name)
        assert f"{name} = {value} " in refusal()
        del os.environ[name]
        os.environ |= {} if before is None else {name: before}


def test_the_precision_of_the_recipe_may_be_set_twice(launched: Launched) -> None:
    launched("--mixed_precision", "bf16", "--num_processes", "1", ACCELERATE_MIXED_PRECISION="bf16")
    check_launch_settings("bf16")
    for other in ("no", "fp16"):
        with pytest.raises(TrainingError, match="MIXED_PRECISION = bf16"):
            check_launch_settings(other)


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
def test_every_shipped_file_is_accepted(launched: Launched, file: Path) -> None:
    launched("--machine_rank", "0", "--main_process_ip", "localhost", yaml=file.read_text(encoding="utf-8"))
    check_launch_settings("no")


def test_what_accelerate_config_writes_is_accepted_and_deepspeed_without_zero3_init(launched: Launched) -> None:
    launched("--num_processes", "4", "--max_restarts", "3", yaml=WRITTEN_BY_ACCELERATE_CONFIG)
    check_launch_settings("bf16")
    section = "deepspeed_config: {zero_stage: 3, zero3_init_flag: false, zero3_save_16bit_model: true}"
    launched(yaml=in_file(section, "DEEPSPEED"))
    check_launch_settings("no")


def test_cpu_is_refused_beside_a_gpu_and_tf32_under_a_recipe_in_fp32(launched: Launched, monkeypatch) -> None:
    launched("--cpu", "--num_processes", "1")
    check_launch_settings("no")
    monkeypatch.setattr(launcher.torch.cuda, "is_available", lambda: True)
    assert "CUDA_VISIBLE_DEVICES=" in refusal()
    launched("--num_processes", "1", TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")
    check_launch_settings("bf16")
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE = 1" in refusal()


def test_fewer_processes_than_the_launcher_was_to_start_are_refused(launched: Launched, monkeypatch) -> None:
    for flags in (("--cpu", "--num_processes", "2"), ("--num_processes", "3")):
        launched(*flags)
        with pytest.raises(TrainingError, match="was to start several processes and started only this one"):
            launch()
    launched("--num_processes", "1")
    check_all_started()
    launched("--cpu", "--num_processes", "2")
    address = {"MASTER_ADDR": "node1"}  # of the user, who may start a single process all the same
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(environ=lambda: address))
    check_all_started()


def test_processes_of_a_launch_are_not_alone(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(yaml=WRITTEN_BY_ACCELERATE_CONFIG)
    launch_as_second_of_two(monkeypatch)
    check_all_started()


def test_every_variable_of_accelerate_is_known() -> None:
    """A new version of Accelerate may add some: each must be placed among the rules, or here if it affects no run."""
    sources = "".join(file.read_text(encoding="utf-8") for file in Path(accelerate.__file__).parent.rglob("*.py"))
    rules = launcher._rules("no", has_gpu=True, has_deepspeed=False)
    names = {*re.findall(r"\bACCELERATE_[A-Z0-9_]*[A-Z0-9]\b", sources)}
    unknown = {name for name in names if not any(launcher.fnmatch(name, rule.pattern) for rule in rules)}
    assert unknown == {
        "ACCELERATE_ALLOW_CP_STANDALONE", "ACCELERATE_BYPASS_DEVICE_MAP", "ACCELERATE_CONFIG_DS_FIELDS",
        "ACCELERATE_CPU_AFFINITY", "ACCELERATE_DEBUG_MODE", "ACCELERATE_DEBUG_RDV_FILE",
        "ACCELERATE_ENABLE_RICH", "ACCELERATE_INIT_INCLUDE_BUFFERS", "ACCELERATE_IN_TPU_POD",
        "ACCELERATE_LOG_LEVEL", "ACCELERATE_NUM_PROCESSES", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
        "ACCELERATE_USE_DEEPSPEED",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("exported", "expected"), [(None, None), ("3", 3), ("4,2", 4), ("0", None), ("many", None), ("", None)]
)
def test_threads_that_the_user_exported_are_read_without_a_launcher(monkeypatch, exported, expected) -> None:
    for name in (*MARKS, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if exported is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", exported)
    assert exported_threads() == expected


@pytest.mark.parametrize("mark", MARKS)
def test_threads_that_a_launcher_sets_by_itself_are_not_the_users(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    def denied() -> None:
        raise launcher.psutil.AccessDenied

    monkeypatch.setenv(mark, "default")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for environ, expected in ((dict, None), (lambda: {"OMP_NUM_THREADS": "3"}, 3), (denied, None)):
        monkeypatch.setattr(launcher.psutil, "Process", lambda _, environ=environ: SimpleNamespace(environ=environ))
        assert exported_threads() == expected


def test_what_accelerate_cannot_read_is_one_line(launched: Launched) -> None:
    launched("--num_processes", "1", ACCELERATE_DEBUG_MODE="maybe")
    with_fresh_process_state()
    with pytest.raises(TrainingError, match="Accelerate cannot start: invalid truth value maybe"):
        launch()
    with_fresh_process_state()
