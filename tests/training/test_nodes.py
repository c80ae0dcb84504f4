"""Accelerate's YAML files as their heads say to start them, two launchers for two machines among them."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from longmlm.folders import MANIFEST
from longmlm.training import checkpoint, tracking
from tests.training.test_faults import ROOT, faulty, finish, start, told
from tests.training.test_run import losses

YAML = ROOT / "configs" / "accelerate"
NUM_PROCESSES = {"ddp.yaml": 2, "two-nodes-cpu.yaml": 4, "two-nodes.yaml": 4}
STARTED_ELSEWHERE = {"single.yaml", "two-cpu-processes.yaml"}  # by test_processes.py
ADDRESS = "127.0.0.1"
ADDRESSES = ("10.203.7.1", "10.203.7.2")


def launchers(name: str, *options: str, address: str = ADDRESS) -> list[tuple[str, ...]]:
    """Returns the command of each machine, all of them here, as the head of the YAML file tells it."""
    command = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(YAML / name))
    num_machines = load_config_from_file(str(YAML / name)).num_machines
    if num_machines == 1:
        return [(*command, "--main_process_port", "0", *options)]
    port = str(free_port())
    place = ("--main_process_ip", address, "--main_process_port", port)
    return [(*command, "--machine_rank", str(rank), *place, *options) for rank in range(num_machines)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind((ADDRESS, 0))
        return one.getsockname()[1]


def run_all(settings, folder: Path, commands: list[tuple[str, ...]], *script: str) -> list[tuple[int, str]]:
    """Returns exit code and output of each launcher; all are started at once, on one run folder."""
    places = [folder / f"machine-{rank}" for rank in range(len(commands))]
    for place in places:
        place.mkdir(exist_ok=True)
    processes = [start(settings, place, command, *script) for place, command in zip(places, commands, strict=True)]
    return [finish(process, place, 300) for process, place in zip(processes, places, strict=True)]


@pytest.fixture
def machines():
    """Prefixes of commands that run them in network namespaces, joined by a cable, with an address each."""
    names = [f"longmlm-{os.getpid()}-{rank}" for rank in range(2)]
    made = [["netns", "add", name] for name in names]
    made.append(["link", "add", "cable", "netns", names[0], "type", "veth", "peer", "cable", "netns", names[1]])
    for name, address in zip(names, ADDRESSES, strict=True):
        made.append(["-n", name, "address", "add", f"{address}/24", "dev", "cable"])
        made += [["-n", name, "link", "set", device, "up"] for device in ("lo", "cable")]
    try:
        for arguments in made:
            done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"network namespaces need root: {done.stderr.strip()}")
        yield [("ip", "netns", "exec", name, "env", "GLOO_SOCKET_IFNAME=cable") for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@pytest.fixture
def whole(settings, train, tmp_path):
    """The settings without dropout, and the run that one process makes with them."""
    settings = replace(settings, recipe=replace(settings.recipe, dropout=0.0))
    return settings, train(replace(settings, run=str(tmp_path / "whole")))


def assert_same_record(one: Path, other: Path) -> None:
    """Asserts that step by step losses agree to rounding and tokens exactly, and the evaluations as well."""
    left, right = (tracking.read(run) for run in (one, other))
    assert [(line["step"], line["tokens"]) for line in left] == [(line["step"], line["tokens"]) for line in right]
    assert losses(other) == pytest.approx(losses(one), rel=1e-5)
    assert len(losses(one)) == 12
    held_out = [[line["held_out"]["whole"]["loss"] for line in lines if "held_out" in line] for lines in (left, right)]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-5)
    assert len(held_out[0]) == 4


@pytest.mark.parametrize(
    "name", ["ddp.yaml", "two-nodes-cpu.yaml", pytest.param("two-nodes.yaml", marks=pytest.mark.slow)]
)
def test_an_accelerate_config_starts_a_run_with_the_losses_of_one_process(whole, tmp_path, name):
    """Without a GPU, nothing is another than in the file but the number of processes."""
    settings, run = whole
    num_processes = NUM_PROCESSES[name]
    settings = replace(settings, runtime=replace(settings.runtime, num_processes=num_processes))
    for code, said in run_all(settings, tmp_path, launchers(name, "--num_processes", str(num_processes))):
        assert code == 0, said[-2000:]
    assert_same_record(run, Path(settings.run))


def test_every_accelerate_config_is_started_by_a_test():
    plain = {path.name for path in YAML.glob("*.yaml") if "DEEPSPEED" not in path.read_text(encoding="utf-8")}
    assert plain == NUM_PROCESSES.keys() | STARTED_ELSEWHERE


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces are made with ip, of iproute2")
def test_two_machines_with_addresses_of_their_own_train_as_one_process(whole, machines, tmp_path):
    settings, run = whole
    commands = launchers("two-nodes-cpu.yaml", address=ADDRESSES[0])
    for code, said in run_all(settings, tmp_path, [(*on, *one) for on, one in zip(machines, commands, strict=True)]):
        assert code == 0, said[-2000:]
    assert_same_record(run, Path(settings.run))


@pytest.mark.slow
def test_two_machines_with_other_rows_under_the_same_name_do_not_begin(settings, tmp_path):
    rows = Path(shutil.copytree(settings.rows, tmp_path / "rows"))
    manifest = json.loads((rows / MANIFEST).read_text(encoding="utf-8"))
    held_out, train = sorted(name for name in manifest["files"] if name.endswith(".arrow"))
    shutil.copy(rows / train, rows / held_out)
    manifest["files"][held_out] = manifest["files"][train]
    (rows / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    own_disk = ("unshare", "-rm", "sh", "-c", f'mount --bind {rows} {settings.rows} && exec "$@"', "sh")
    if subprocess.run([*own_disk, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    one, other = launchers("two-nodes-cpu.yaml")
    for code, said in run_all(settings, tmp_path, [one, (*own_disk, *other)]):
        assert code != 0
        assert all("a process sees other rows in" in line for line in told(said)) and told(said), said[-2000:]
    assert not list(Path(settings.run).glob("checkpoints/*"))


@pytest.mark.slow
def test_a_process_killed_on_one_machine_ends_the_launchers_of_both_and_the_same_commands_go_on(whole, tmp_path):
    settings, run = whole
    name, mine = "two-nodes-cpu.yaml", Path(settings.run)
    ended = run_all(settings, tmp_path, launchers(name), *faulty("die", 3, 6))
    assert all(code != 0 for code, _ in ended), ended
    assert checkpoint.newest_verified(mine).folder == checkpoint.folder_of(mine, 4)
    for code, said in run_all(settings, tmp_path, launchers(name)):
        assert code == 0, said[-2000:]
        assert not told(said)
    assert_same_record(run, mine)
