"""Runs in processes of their own, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from longmlm.artifacts.artifact import to_toml
from longmlm.settings.pretrain import PretrainConfig
from tests.support.training import ROOT, SOURCES, losses

YAML = ROOT / "configs" / "accelerate"
FAULTY = str(ROOT / "tests" / "support" / "faulty.py")


def accelerate(yaml: str | Path, *options: str) -> tuple[str, ...]:
    """Returns the command that starts a script under a config of configs/accelerate, or another one's path."""
    command = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(YAML / yaml))
    return (*command, "--main_process_port", "0", *options)


ALONE = (sys.executable,)
TWO_PROCESSES = accelerate("two-cpu-processes.yaml")
SECOND_OF_TWO = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def launch_as_second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what a launcher such as torchrun sets for the second of two processes on a machine."""
    for name, value in SECOND_OF_TWO.items():
        monkeypatch.setenv(name, value)


def start(
    settings: PretrainConfig, folder: Path, launcher: tuple[str, ...] = TWO_PROCESSES, *script: str
) -> subprocess.Popen[bytes]:
    """Starts training, or `script`, in a process group of its own, which writes to output.txt in `folder`."""
    file = folder / "settings.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    command = [*launcher, *(script or (str(ROOT / "pretrain.py"),)), str(file)]
    return _started(command, ROOT, folder, OMP_NUM_THREADS="1")


def _started(command: list[str], place: Path, folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": SOURCES, **variables}
    with (folder / "output.txt").open("w") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            start_new_session=True,
            preexec_fn=obey_ctrl_c,  # noqa: PLW1509
            **streams,
        )


def obey_ctrl_c() -> None:
    """Makes a new process receive SIGINT, also where a shell has started the tests in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[bytes], folder: Path, seconds: float = 600) -> tuple[int, str]:
    """Returns exit code and output; a process that does not exit in time is killed with all that it started."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for doomed in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            doomed.kill()
        process.wait()
        pytest.fail((folder / "output.txt").read_text(encoding="utf-8")[-3000:])
    return process.returncode, (folder / "output.txt").read_text(encoding="utf-8")


def run_to_end(
    settings: PretrainConfig, folder: Path, launcher: tuple[str, ...] = TWO_PROCESSES, *script: str
) -> tuple[int, str]:
    return finish(start(settings, folder, launcher, *script), folder)


def trained(settings: PretrainConfig, folder: Path, launcher: tuple[str, ...] = TWO_PROCESSES) -> Path:
    code, output = run_to_end(settings, folder, launcher)
    assert code == 0, output[-3000:]
    return Path(settings.run)


@dataclass(frozen=True)
class Ended:
    """A training among several in the same processes: its run, and what its first rank printed and ended with."""

    folder: Path
    run: Path

    @property
    def output(self) -> str:
        return (self.folder / "output-0.txt").read_text(encoding="utf-8")

    @property
    def codes(self) -> list[int]:
        return self._noted("code")

    @property
    def num_threads(self) -> list[int]:
        return self._noted("num_threads")

    def _noted(self, key: str) -> list[int]:
        return [json.loads((self.folder / f"ended-{rank}.json").read_text())[key] for rank in (0, 1)]

    def succeeded(self) -> Path:
        """Returns the run folder of a training that succeeded."""
        assert self.codes == [0, 0], self.output[-3000:]
        return self.run


def run_in_turn(
    trainings: dict[str, tuple[PretrainConfig, str]], folder: Path, launcher: tuple[str, ...]
) -> dict[str, Ended]:
    """Runs trainings, each with a fault as `FAULT RANK STEP`, one after another in the processes of one launch.

    The user has exported no number of threads.
    """
    words, ended = [FAULTY], {}
    for name, (settings, fault) in trainings.items():
        (folder / name).mkdir(exist_ok=True)
        file = folder / name / "settings.toml"
        file.write_text(to_toml(settings), encoding="utf-8")
        words += [*fault.split(), str(file)]
        ended[name] = Ended(folder / name, Path(settings.run))
    code, output = finish(_started([*launcher, *words], ROOT, folder), folder)
    assert code == 0, output[-3000:]
    return ended


def faulty(fault: str, rank: int, step: int) -> tuple[str, ...]:
    """Returns the script in which a fault happens on one rank at the beginning of the update after `step`."""
    return (FAULTY, fault, str(rank), str(step))


def errors_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("error: ")]


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits until the condition holds; fails when the process exits before, or after two minutes."""
    deadline = time.monotonic() + 120
    while not condition():
        output = (folder / "output.txt").read_text(encoding="utf-8")[-3000:]
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.05)


def has_steps(run: Path, num_steps: int) -> bool:
    return len(losses(run)) >= num_steps


def start_command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a longmlm command in `folder`, in a process group of its own; it writes to output.txt there."""
    return _started([sys.executable, "-m", "longmlm", *arguments], folder, folder, OMP_NUM_THREADS="1")


def longmlm(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Runs a longmlm command in `folder` and returns its exit code and the lines that it printed."""
    code, output = finish(start_command(folder, *arguments), folder)
    return code, output.splitlines()
