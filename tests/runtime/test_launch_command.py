"""A launch is named: a YAML file of longmlm by its name, or a command whose program and file exist."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser

from longmlm.errors import ConfigError
from longmlm.runtime.launch_command import Launched, check_gpus, launch_command, launched
from longmlm.settings.shipped import LAUNCHES

NAMES = sorted(path.stem for path in LAUNCHES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_accelerate_with_the_shipped_file(name: str) -> None:
    assert launch_command(name)[:2] == ["accelerate", "launch"]
    words = [*launch_command(f"{name} --num_processes 4")[2:], "-m", "longmlm.stages.pretrain", "pipeline.toml"]
    options = launch_command_parser().parse_args(words)
    assert Path(options.config_file) == LAUNCHES / f"{name}.yaml"
    assert (options.num_processes, options.training_script) == (4, "longmlm.stages.pretrain")


@pytest.mark.parametrize(
    ("launch", "started"),
    [
        ("ddp", Launched(8)),
        ("ddp --num_processes 4", Launched(4)),
        ("accelerate launch -n2", Launched(2)),
        ("accelerate launch --num-processes=3 --cpu", Launched(3, is_on_cpu=True)),
        ("two-cpu-processes", Launched(2, is_on_cpu=True)),
        ("two-nodes", Launched(16, 2)),
        ("two-nodes-cpu --num_machines 4", Launched(4, 4, is_on_cpu=True)),
        ("accelerate launch --multi_gpu", Launched()),
        ("torchrun --nproc_per_node 8", Launched()),
        ("srun accelerate launch -n 8", Launched()),
    ],
)
def test_the_processes_that_a_launch_starts_are_read_from_its_options_and_file(launch: str, started: Launched) -> None:
    assert launched(launch) == started


@pytest.mark.parametrize(
    ("launch", "is_refused"),
    [*((name, name.startswith("zero")) for name in NAMES), ("accelerate launch --use_deepspeed", True)],
)
def test_deepspeed_must_be_installed_for_a_launch_with_it(
    launch: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_command(launch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs DeepSpeed.*\[deepspeed\]") if is_refused else nullcontext():
        launch_command(launch)


def test_a_launch_for_cpus_is_refused_where_it_would_train_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for num_gpus in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda number=num_gpus: number)
        with pytest.raises(ConfigError, match="has 2 GPUs: .*CUDA_VISIBLE_DEVICES=") if num_gpus else nullcontext():
            check_gpus("two-cpu-processes")


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("num_processes: [2", encoding="utf-8")
    with pytest.raises(ConfigError, match="mine.yaml is not valid YAML"):
        launch_command(f"accelerate launch --config_file {tmp_path}/mine.yaml")


def test_a_command_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my own.yaml").touch()
    words = ["accelerate", "launch", "--config_file", str(tmp_path / "my own.yaml"), "--num_processes", "2"]
    assert launch_command(f"accelerate launch --config_file '{tmp_path}/my own.yaml' --num_processes 2") == words
    assert launch_command(f"accelerate launch '--config_file={tmp_path}/my own.yaml'")[2:] == [
        f"--config_file={tmp_path}/my own.yaml"
    ]


@pytest.mark.parametrize(
    ("launch", "parts"),
    [
        ("dpp", ["there is no program 'dpp'", "a launch that comes with longmlm", *NAMES]),
        ("slurm", ["slurm is no launch but a job", "longmlm launch-config slurm", *NAMES]),
        ("kubernetes --num_processes 2", ["kubernetes is no launch but a job", "longmlm launch-config kubernetes"]),
        ("", ["there is no program ''"]),
        ("accelerate launch --config_file gone/ddp.yaml", ["no file gone/ddp.yaml", "launch = 'ddp'"]),
        ("accelerate launch --config-file=gone.yaml", ["there is no file gone.yaml: check its path"]),
        ("accelerate launch --config_file", ["there is no file"]),
        ("accelerate 'launch", ["is not a valid command: No closing quotation"]),
    ],
)
def test_a_launch_that_cannot_start_is_refused_in_one_line(launch: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        launch_command(launch)
    assert "\n" not in str(raised.value)
    assert [part for part in parts if part not in str(raised.value)] == []
