"""A launch may set what starts processes; whatever else a run would ignore, or obey against its recipe, is refused."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate.commands.config import config_args
from accelerate.commands.launch import launch_command_parser

from longmlm.errors import TrainingError
from longmlm.runtime import launcher
from longmlm.runtime.launch import launch
from longmlm.runtime.launcher import (
    arguments_of_launcher,
    check_launch_settings,
    exported_threads,
    launcher_settings,
)
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


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Makes this process the child of `accelerate launch` with these flags, a file of this content, and variables."""
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(launcher, "default_config_file", str(tmp_path / "default.yaml"))
    monkeypatch.setattr(launcher.torch.cuda, "is_available", lambda: False)

    def start(*flags: str, yaml: str = "", **variables: str) -> None:
        if yaml:
            (tmp_path / "launch.yaml").write_text(yaml, encoding="utf-8")
            flags = ("--config_file", str(tmp_path / "launch.yaml"), *flags)
        command = [
            "python",
            "/venv/bin/accelerate",
            "launch",
            *flags,
            "pretrain.py",
            "mine.toml",
            "--num_processes",
            "9",
        ]
        monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(cmdline=lambda: command))
        monkeypatch.setattr(launcher.sys, "orig_argv", ["python", *command[-4:]])
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


def with_section(section: str, distributed_type: str = "MULTI_GPU") -> str:
    return f"distributed_type: {distributed_type}\nnum_processes: 2\n{section}"


IN_FILE = {  # a key of the file, and what its refusal names
    "distributed_type: FSDP": "distributed_type = FSDP in .*zero-3.yaml",
    "distributed_type: MEGATRON_LM": "distributed_type = MEGATRON_LM in ",
    "distributed_type: MULTI_XPU": "distributed_type = MULTI_XPU in ",
    "distributed_type: XLA\ntpu_name: mine": "distributed_type = XLA in ",
    "fsdp_config: {fsdp_version: 2}": "fsdp_version = 2 in .*zero-3.yaml",
    "mixed_precision: fp16": "mixed_precision = fp16 in .*recipe.precision",
    "fp8_config: {backend: TE}": "fp8_backend = TE in ",
    "dynamo_config: {dynamo_backend: INDUCTOR}": "dynamo_backend = INDUCTOR in ",
    "dynamo_config: {mode: max-autotune}": "dynamo_mode = max-autotune in ",
    "downcast_bf16: true": "downcast_bf16 = True in ",
    "parallelism_config: {parallelism_config_tp_size: 2}": "parallelism_config_tp_size = 2 in ",
    "deepspeed_config: {zero_stage: 3}": "zero_stage = 3 in .*DeepSpeed",
    "mpirun_config: {mpirun_hostfile: hosts}": "mpirun_hostfile = hosts in ",
}
FLAGS = {
    "--dynamo_backend inductor": "--dynamo_backend = inductor on accelerate launch's command line",
    "--mixed-precision fp8": "--mixed_precision = fp8 ",
    "--use_fsdp": "--use_fsdp = True .*zero-3.yaml",
    "--use_megatron_lm": "--use_megatron_lm = True ",
    "--gradient_clipping 0.5": "--gradient_clipping = 0.5 .*recipe.max_gradient_norm",
    "--gradient_accumulation_steps 4": "--gradient_accumulation_steps = 4 .*recipe.batch_tokens",
    "--zero_stage 2": "--zero_stage = 2 .*DeepSpeed",
    "--num_cpu_threads_per_process 4": "--num_cpu_threads_per_process = 4 .*runtime.num_threads",
    "--tpu": "--tpu = True ",
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


def test_a_key_of_the_file_a_flag_or_a_variable_that_a_run_would_not_follow_is_refused(launched, tmp_path, monkeypatch):
    for content, named in IN_FILE.items():
        launched(yaml=content if "distributed_type" in content else with_section(content))
        assert re.search(named, refusal()) and str(tmp_path / "launch.yaml") in refusal()
    for flags, named in FLAGS.items():
        launched(*flags.split())
        assert re.search(named, refusal())
    launched()
    check_launch_settings("no")
    for name, value in VARIABLES.items():
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert f"{name} = {value} in the environment" in refusal()


def test_the_precision_of_the_recipe_may_be_set_twice(launched):
    launched("--mixed_precision", "bf16", ACCELERATE_MIXED_PRECISION="bf16")
    check_launch_settings("bf16")
    for other in ("no", "fp16"):
        with pytest.raises(TrainingError, match="mixed_precision = bf16"):
            check_launch_settings(other)


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
def test_every_shipped_file_is_accepted(launched, file: Path) -> None:
    yaml = file.read_text(encoding="utf-8")
    launched(yaml=yaml, **({"ACCELERATE_USE_DEEPSPEED": "true"} if "deepspeed_config" in yaml else {}))
    check_launch_settings("no")


def test_what_accelerate_config_writes_is_accepted_and_deepspeed_without_zero3_init(launched):
    launched(
        "--num_processes", "4", "--max_restarts", "3", "--monitor_interval", "1", yaml=WRITTEN_BY_ACCELERATE_CONFIG
    )
    check_launch_settings("bf16")
    section = "deepspeed_config: {zero_stage: 3, zero3_init_flag: %s, zero3_save_16bit_model: true}"
    launched(yaml=with_section(section % "false", "DEEPSPEED"), ACCELERATE_USE_DEEPSPEED="true")
    check_launch_settings("no")
    launched(yaml=with_section(section % "true", "DEEPSPEED"))
    with pytest.raises(TrainingError, match="zero3_init_flag = True"):
        check_launch_settings("no")


def test_cpu_is_refused_beside_a_gpu_and_tf32_under_a_recipe_in_fp32(launched, monkeypatch):
    launched("--cpu")
    check_launch_settings("no")
    monkeypatch.setattr(launcher.torch.cuda, "is_available", lambda: True)
    with pytest.raises(TrainingError, match="CUDA_VISIBLE_DEVICES="):
        check_launch_settings("no")
    launched(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")
    check_launch_settings("bf16")
    with pytest.raises(TrainingError, match="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE = 1"):
        check_launch_settings("no")


def test_flags_come_before_the_file_and_the_script_has_its_own(launched):
    launched("--num_processes", "4", "--mixed_precision", "no", yaml=with_section("mixed_precision: fp16"))
    check_launch_settings("no")
    assert [setting.value for setting in launcher_settings() if setting.name == "num_processes"] == ["4"]


def test_fewer_processes_than_the_launcher_was_to_start_are_refused(launched):
    launched("--num_processes", "2")
    with_fresh_process_state()
    with pytest.raises(TrainingError, match="was to start 2 processes and started only 1"):
        launch()
    with_fresh_process_state()


def test_the_default_file_of_accelerate_counts(launched, tmp_path):
    launched()
    (tmp_path / "default.yaml").write_text(with_section("mixed_precision: fp16"), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"default\.yaml"):
        check_launch_settings("no")


LAUNCH = "accelerate launch --num_processes 2"
PARENTS = [  # the parent's command line, this process's, and whether the parent is accelerate launch
    (f"python /venv/bin/{LAUNCH} pretrain.py mine.toml", "python pretrain.py mine.toml", True),
    (
        "python /venv/bin/accelerate-launch --num_processes 2 pretrain.py mine.toml",
        "python pretrain.py mine.toml",
        True,
    ),
    (f"python3 -u -m accelerate.commands.launch {LAUNCH[18:]} x.py a", "python -u x.py a", True),
    (f"python -m accelerate.commands.accelerate_cli launch {LAUNCH[18:]} x.py", "python x.py", True),
    (f"python /bin/{LAUNCH} -m longmlm.stages.pretrain a b", "python -u -m longmlm.stages.pretrain a b", True),
    (f"python /bin/{LAUNCH} --no_python longmlm pretrain a", "python /venv/bin/longmlm pretrain a", True),
    ("make accelerate", "python /venv/bin/longmlm pretrain mine.toml", False),
    ("bash accelerate launch pretrain.py mine.toml", "python other.py mine.toml", False),
    ("bash run.sh accelerate launch --num_processes 2 pretrain.py mine.toml", "python pretrain.py mine.toml", False),
    (f"python notebook.py {LAUNCH} pretrain.py", "python pretrain.py", False),
    (f"python /bin/{LAUNCH} pretrain.py other.toml", "python pretrain.py mine.toml", False),
    ("torchrun pretrain.py mine.toml", "python -u pretrain.py mine.toml", False),
    (f"python /bin/{LAUNCH}", "python", False),
    ("", "python pretrain.py", False),
]


@pytest.mark.parametrize(("parent", "own", "is_launcher"), PARENTS)
def test_a_launcher_is_known_by_what_it_runs_not_by_a_word(monkeypatch, tmp_path, parent, own, is_launcher):
    monkeypatch.setattr(launcher, "default_config_file", str(tmp_path / "default.yaml"))
    (tmp_path / "default.yaml").write_text(with_section("mixed_precision: fp16"), encoding="utf-8")
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(cmdline=parent.split))
    monkeypatch.setattr(launcher.sys, "orig_argv", own.split())
    assert (arguments_of_launcher() is not None) == is_launcher
    assert [one.value for one in launcher_settings() if one.name == "num_processes"] == ["2"] * is_launcher


def test_every_flag_and_key_of_accelerate_is_known() -> None:
    """A new version of Accelerate may add some: each must be placed among the rules."""
    rules = launcher._rules("no", has_gpu=False, has_deepspeed=False)
    sections = {"fp8_config", "dynamo_config", "parallelism_config"}
    others = {"aws_access_key_id", "aws_secret_access_key", "command_file", "commands", "env", "help", "vm", "tpu"}
    flags = {action.dest for action in launch_command_parser()._actions}
    keys = set(config_args.ClusterConfig.__dataclass_fields__)
    unknown = {name for name in flags | keys if not any(launcher.fnmatch(name, rule.pattern) for rule in rules)}
    assert unknown - sections == others


@pytest.mark.parametrize(
    ("exported", "expected"), [(None, None), ("3", 3), ("4,2", 4), ("0", None), ("many", None), ("", None)]
)
def test_threads_that_the_user_exported_are_read_without_a_launcher(monkeypatch, exported, expected):
    for name in ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if exported is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", exported)
    assert exported_threads() == expected


@pytest.mark.parametrize("is_torchrun", [True, False])
@pytest.mark.parametrize(("exported", "expected"), [({}, None), ({"OMP_NUM_THREADS": "3"}, 3)])
def test_threads_that_a_launcher_sets_by_itself_are_not_the_users(monkeypatch, is_torchrun, exported, expected):
    parent = SimpleNamespace(environ=lambda: exported, cmdline=lambda: ["python", "bin/accelerate", "launch", "x.py"])
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: parent)
    monkeypatch.setattr(launcher.sys, "orig_argv", ["python", "other.py" if is_torchrun else "x.py"])
    if is_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert exported_threads() == expected


def test_threads_that_the_user_exported_count_beside_what_another_launch_has_left(monkeypatch):
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(environ=dict, cmdline=lambda: ["bash"]))
    for name, value in {"LOCAL_RANK": "0", "ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    assert exported_threads() == 3


def test_without_access_to_the_launcher_no_threads_are_the_users(monkeypatch):
    def denied():
        raise launcher.psutil.AccessDenied

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launcher.psutil, "Process", lambda _: SimpleNamespace(environ=denied))
    assert exported_threads() is None


def test_what_accelerate_cannot_read_is_one_line(launched) -> None:
    launched(ACCELERATE_DEBUG_MODE="maybe")
    with_fresh_process_state()
    with pytest.raises(TrainingError, match="Accelerate cannot start: invalid truth value maybe"):
        launch()
    with_fresh_process_state()
