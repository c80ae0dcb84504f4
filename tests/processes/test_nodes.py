"""The configs of Accelerate, started as their first lines say: one launcher per machine."""

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
from longmlm.training.run_folder import checkpoint_folder, newest_verified
from tests.support.launching import YAML, errors_in, faulty, finish, start
from tests.support.training import assert_same_metrics, with_recipe, with_runtime

NUM_PROCESSES = {"two-nodes-cpu.yaml": 4, "two-nodes.yaml": 4}
STARTED_ELSEWHERE = {"single.yaml", "two-cpu-processes.yaml", "ddp.yaml"}  # by test_launch.py, test_generated_mode.py
ADDRESS = "127.0.0.1"
ADDRESSES = ("10.203.7.1", "10.203.7.2")


def launchers(name: str, *options: str, address: str = ADDRESS) -> list[tuple[str, ...]]:
    """Returns the command of each machine, all of them this one, as the first lines of the YAML file give it."""
    num_machines = load_config_from_file(str(YAML / name)).num_machines
    port = str(free_port())
    command = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(YAML / name))
    main = ("--main_process_ip", address, "--main_process_port", port)
    return [(*command, "--machine_rank", str(rank), *main, *options) for rank in range(num_machines)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        return listener.getsockname()[1]


def run_all(settings, folder: Path, commands: list[tuple[str, ...]], *script: str) -> list[tuple[int, str]]:
    """Returns exit code and output of each launcher; all are started at once, on one run folder."""
    folders = [folder / f"machine-{rank}" for rank in range(len(commands))]
    for own in folders:
        own.mkdir(exist_ok=True)
    processes = [start(settings, own, command, *script) for own, command in zip(folders, commands, strict=True)]
    return [finish(process, own, 300) for process, own in zip(processes, folders, strict=True)]


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
def of_one_process(settings, train, tmp_path):
    """The settings without dropout, and the run that one process makes with them."""
    settings = with_recipe(settings, dropout=0.0)
    return settings, train(replace(settings, run=str(tmp_path / "one")))


@pytest.mark.parametrize("name", ["two-nodes-cpu.yaml", pytest.param("two-nodes.yaml", marks=pytest.mark.slow)])
def test_an_accelerate_config_starts_a_run_with_the_losses_of_one_process(of_one_process, tmp_path, name):
    """Without a GPU; only the number of processes differs from the file."""
    settings, run = of_one_process
    num_processes = NUM_PROCESSES[name]
    settings = with_runtime(settings, num_processes=num_processes)
    for code, output in run_all(settings, tmp_path, launchers(name, "--num_processes", str(num_processes))):
        assert code == 0, output[-2000:]
    assert_same_metrics(run, Path(settings.run))


def test_every_accelerate_config_is_started_by_a_test():
    plain = {path.name for path in YAML.glob("*.yaml") if "DEEPSPEED" not in path.read_text(encoding="utf-8")}
    assert plain == NUM_PROCESSES.keys() | STARTED_ELSEWHERE


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces are made with ip, of iproute2")
def test_two_machines_with_addresses_of_their_own_train_as_one_process(of_one_process, machines, tmp_path):
    settings, run = of_one_process
    commands = launchers("two-nodes-cpu.yaml", address=ADDRESSES[0])
    for code, output in run_all(settings, tmp_path, [(*on, *one) for on, one in zip(machines, commands, strict=True)]):
        assert code == 0, output[-2000:]
    assert_same_metrics(run, Path(settings.run))


@pytest.mark.slow
def test_two_machines_with_other_rows_under_the_same_name_do_not_start(settings, tmp_path):
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
    for code, output in run_all(settings, tmp_path, [one, (*own_disk, *other)]):
        assert code != 0
        assert all("a process sees other rows in" in line for line in errors_in(output)) and errors_in(output), output[
            -2000:
        ]
    assert not list(Path(settings.run).glob("checkpoints/*"))


@pytest.mark.slow
def test_a_process_killed_on_one_machine_stops_both_launchers_and_the_same_commands_resume(of_one_process, tmp_path):
    settings, run = of_one_process
    name, own = "two-nodes-cpu.yaml", Path(settings.run)
    ended = run_all(settings, tmp_path, launchers(name), *faulty("die", 3, 6))
    assert all(code != 0 for code, _ in ended), ended
    assert newest_verified(own).folder == checkpoint_folder(own, 4)
    for code, output in run_all(settings, tmp_path, launchers(name)):
        assert code == 0, output[-2000:]
        assert not errors_in(output)
    assert_same_metrics(run, own)
