"""The commands in the table of docs/deploy.md, with the files that longmlm prints, start training without a clone."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from longmlm.config import parse
from longmlm.runtime.children import Ended
from longmlm.settings.pipeline import ResolvedPipeline
from longmlm.settings.shipped import JOBS, LAUNCHES
from longmlm.stages import run
from tests.support.clusters import StandIns
from tests.support.tiny import tiny_project
from tests.support.training import ROOT, SOURCES

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| (\w[^|]*?) \| `([^`]+)` \|$", PAGE, re.MULTILINE))
PRINTED = dict(re.findall(r"^longmlm launch-config ([\w-]+) > (\S+)$", PAGE, re.MULTILINE))
Start = Callable[..., list[SimpleNamespace]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with mine.toml and the files that the page says to print, outside any clone."""
    place = tmp_path / "place"
    place.mkdir()
    tiny_project(place)
    for name, file in PRINTED.items():
        command = [sys.executable, "-m", "longmlm", "launch-config", name]
        done = subprocess.run(command, cwd=place, env={"PYTHONPATH": SOURCES}, capture_output=True, check=True)
        (place / file).write_bytes(done.stdout)
    return place


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Start:
    """Starts a command of the table with stand-ins; returns the calls of accelerate."""
    stand_ins = StandIns.in_folder(tmp_path)

    def started(command: str) -> list[SimpleNamespace]:
        calls = stand_ins.run(folder, shlex.split(command), PYTHONPATH=SOURCES)
        return [call for call in calls if call.argv[0] == "accelerate"]

    return started


def options_of(call: SimpleNamespace, folder: Path) -> SimpleNamespace:
    """Returns what Accelerate makes of a launch and its file, which must exist."""
    options, rest = launch_command_parser().parse_known_args(call.argv[2:])
    assert (options.module, options.training_script, rest) == (True, "longmlm.stages.pretrain", [])
    assert Path(options.training_script_args[0]).name == "mine.toml"
    file = vars(load_config_from_file(str(folder / options.config_file)))
    return SimpleNamespace(**file | {name: value for name, value in vars(options).items() if value is not None})


def test_the_page_has_a_command_for_each_place_and_prints_what_they_name() -> None:
    places = [place.partition(",")[0] for place in TABLE]
    assert places == ["one machine with eight GPUs", "two machines", "Slurm", "Kubernetes"]
    named = {word for command in TABLE.values() for word in command.split() if re.search(r"\.(yaml|sbatch)$", word)}
    assert named <= set(PRINTED.values())


def test_printed_files_are_those_of_the_package(folder: Path) -> None:
    for name, file in PRINTED.items():
        [packaged] = [path for parent in (LAUNCHES, JOBS) for path in parent.glob(f"{name}.*")]
        assert (folder / file).read_bytes() == packaged.read_bytes()


def test_one_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    started = []
    monkeypatch.setattr(run, "run_child", lambda command, _: (started.append(command), Ended(0))[1])
    monkeypatch.setattr(run, "is_trained", lambda _: True)
    [_, command, *arguments] = shlex.split(TABLE["one machine with eight GPUs"])
    assert command == "run"
    run.run_stage(parse(ResolvedPipeline, arguments), "pretrain", "")
    [launch] = started
    options, _ = launch_command_parser().parse_known_args(launch[2:])
    assert (launch[:2], options.training_script) == (["accelerate", "launch"], "longmlm.stages.pretrain")
    config = load_config_from_file(options.config_file)
    assert (config.num_machines, config.num_processes, config.distributed_type) == (1, 8, "MULTI_GPU")


def test_two_machines(folder: Path, start: Start) -> None:
    for rank in (0, 1):
        [call] = start(TABLE["two machines, on each of them"].replace("--machine_rank 0", f"--machine_rank {rank}"))
        options = options_of(call, folder)
        assert (options.machine_rank, options.num_machines, options.num_processes) == (rank, 2, 16)
        assert (options.main_process_ip, options.main_process_port) == ("FIRST", 29500)


@pytest.mark.parametrize(("place", "first"), [("Slurm", "node1"), ("Kubernetes", "longmlm-pretrain-0.longmlm")])
def test_a_cluster_starts_a_launcher_on_each_machine(folder: Path, start: Start, place: str, first: str) -> None:
    options = [options_of(call, folder) for call in start(TABLE[place])]
    assert [(one.machine_rank, one.num_machines, one.num_processes) for one in options] == [(0, 2, 16), (1, 2, 16)]
    assert {one.main_process_ip for one in options} == {first}
    assert len({one.main_process_port for one in options}) == 1
