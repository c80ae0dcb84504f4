"""Variables of launchers in the environment: of a launch, or left over from one, then refused or without effect."""

import os
import subprocess
import sys
from itertools import cycle

import pytest
import torch

from longmlm.errors import TrainingError
from longmlm.processes import LAUNCHED, RANKS, check_launched, num_started_processes, prints_errors
from longmlm.runtime.launch import launch
from tests.support.launching import SECOND_OF_TWO, launch_as_second_of_two
from tests.support.training import SOURCES

NUMBERS = ("MASTER_PORT", *RANKS, *RANKS.values())


def without(variables: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in variables.items() if key != name}


OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "MASTER_ADDR": "localhost"}
SLURM = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "PMI_SIZE": "2", "PMI_RANK": "1"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
ENVIRONMENTS = [  # variables, how many processes they stand for, or what is wrong with them
    ({}, 1),
    (SECOND_OF_TWO, 2),
    (SECOND_OF_TWO | AGENT, 2),
    (SECOND_OF_TWO | {"RANK": "0", "LOCAL_RANK": "0"}, 2),
    (SECOND_OF_TWO | {"LOCAL_WORLD_SIZE": "2"}, 2),
    (SECOND_OF_TWO | {"PMI_SIZE": "1", "PMI_RANK": "0"}, 2),  # torchrun in a task of Slurm
    *(
        ({name: value}, f"{name} = '{value}' .* is not (a port|an integer)")
        for name, value in zip(NUMBERS, cycle(("two", "", "-2", "1.5")), strict=False)
    ),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE = '0' .* is not an integer of at least 1"),
    ({"MASTER_PORT": "70000"}, "MASTER_PORT = '70000'"),
    (SECOND_OF_TWO | {"RANK": "2"}, "RANK = 2 .* WORLD_SIZE is 2"),
    (SECOND_OF_TWO | {"LOCAL_RANK": "5"}, "LOCAL_RANK = 5 .* WORLD_SIZE is 2"),
    (SECOND_OF_TWO | {"LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK = 1 .* LOCAL_WORLD_SIZE is 1"),
    *((without(SECOND_OF_TWO, name), f"(LOCAL_RANK|WORLD_SIZE) is set .*{name} is not") for name in LAUNCHED),
    (SECOND_OF_TWO | {"MASTER_ADDR": ""}, "MASTER_ADDR"),
    ({"LOCAL_RANK": "0"}, "LOCAL_RANK is set .* RANK is not"),
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set .* LOCAL_RANK is not"),
    (PYTORCH_JOB, "WORLD_SIZE is set .* LOCAL_RANK is not"),
    (SECOND_OF_TWO | {"LOCAL_RANK": "-1"}, "WORLD_SIZE is set .* LOCAL_RANK is not"),
    (SECOND_OF_TWO | {"LOCAL_RANK": "-1", "WORLD_SIZE": "1"}, 1),  # some schedulers set it so
    *(({name: "1"}, 1) for name in (*RANKS, "RANK", "MASTER_ADDR", "MASTER_PORT")),  # leftovers that change nothing
    ({"RANK": "1", "MASTER_ADDR": "localhost"}, 1),
    ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1),
    ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1"}, 1),
    (OPENMPI, 2),
    (OPENMPI | {"PMI_SIZE": "1"}, 2),
    (SLURM | {"MASTER_ADDR": "localhost"}, 2),
    (SLURM, "PMI_SIZE is set .* MASTER_ADDR is not"),
    *((without(OPENMPI, name), f"OMPI_COMM_WORLD_SIZE is set .* {name} is not") for name in [*OPENMPI][1:]),
    (OPENMPI | {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK = 2 .* OMPI_COMM_WORLD_SIZE is 2"),
    (OPENMPI | {"WORLD_SIZE": "1"}, "OMPI_COMM_WORLD_SIZE = 2 .* WORLD_SIZE is 1"),
    (OPENMPI | {"RANK": "0"}, "OMPI_COMM_WORLD_RANK = 1 .* RANK is 0"),
    (AGENT, "TORCHELASTIC_USE_AGENT_STORE is set .* LOCAL_RANK is not"),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, "ACCELERATE_USE_DEEPSPEED is set"),
    (OPENMPI | {"ACCELERATE_USE_DEEPSPEED": "true"}, "ACCELERATE_USE_DEEPSPEED is set"),
    (SECOND_OF_TWO | {"ACCELERATE_USE_DEEPSPEED": "true"}, 2),
]


@pytest.mark.parametrize(("variables", "expected"), ENVIRONMENTS)
def test_variables_that_no_launcher_set_so_are_refused_and_silence_nothing(monkeypatch, variables, expected):
    for name in {*LAUNCHED, *NUMBERS, *AGENT, "ACCELERATE_USE_DEEPSPEED"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, int):
        assert num_started_processes() == expected
        assert prints_errors() == (variables.get("LOCAL_RANK") != "1")
    else:
        assert prints_errors()
        for check in (check_launched, launch):
            with pytest.raises(TrainingError, match=expected):
                check()


LEFT_OVER = """
import os, sys, threading
from longmlm.processes import user_errors
from longmlm.runtime import launch
launch.NOTE_SECONDS, launch.CONNECT_SECONDS = 0.1, float(sys.argv[1])
with user_errors():
    launch.launch()
"""


@pytest.mark.parametrize(("seconds", "code"), [("1", 1), ("600", -15)])
def test_a_process_whose_launch_is_left_over_does_not_wait_for_ever_and_can_be_stopped(seconds: str, code: int) -> None:
    variables = SECOND_OF_TWO | {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "0", "PYTHONPATH": SOURCES}
    command = [sys.executable, "-c", LEFT_OVER, seconds]
    with subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert next(line for line in lines if line.startswith("note: waiting for the launch's other processes"))
        if code < 0:
            process.terminate()
        assert process.wait(120) == code
        assert any("waited 1 s for another process" in line for line in lines) == (code == 1)


def test_more_processes_than_gpus_on_a_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    launch_as_second_of_two(monkeypatch)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(TrainingError, match="^2 processes were started on this machine, which has 1 GPU: .*es 1$"):
        launch()
