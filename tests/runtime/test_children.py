"""A stop signal reaches each process that trains, once, through any launcher; settings go down and errors come back."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from longmlm import errors
from longmlm.errors import DataError, ModelError, UserError
from longmlm.processes import PARENT_VARIABLE
from longmlm.runtime.children import kill_registered, run_child, run_stage_process
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from tests.support.terminal import wait_until
from tests.support.training import SOURCES

RUN = """
import os, sys
from longmlm.runtime.children import run_child
print(*run_child([sys.executable, *sys.argv[1:]], os.environ)[:2])
"""
TRAIN = """
import os, signal, sys, time
from pathlib import Path
from longmlm.processes import register

def loader_worker():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: Path(f"signal-to-worker-{os.getpid()}").touch())
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    os._exit(0)

signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
Path(f"started-{os.getpid()}").touch()
while Path("hold").exists():
    time.sleep(0.02)
register()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        loader_worker()
Path(f"trains-{os.getpid()}").touch()
while not signals:
    time.sleep(0.02)
time.sleep(0.3)  # the step is finished, and a checkpoint saved
Path(f"saved-{os.getpid()}").write_text(str(len(signals)))
os._exit(0)
"""
LAUNCH = """
import os, signal, subprocess, sys
from pathlib import Path
is_agent = sys.argv[1] == "survives"  # as torchrun does
if is_agent:
    signal.signal(signal.SIGTERM, lambda *_: Path("signal-to-launcher").touch())
trainers = [subprocess.Popen([sys.executable, *sys.argv[2:]], start_new_session=is_agent) for _ in "12"]
sys.exit(max(trainer.wait() for trainer in trainers))
"""
FAIL = """
from longmlm.errors import DataError
from longmlm.processes import fail, register
register()
fail(DataError("no rows"))
"""
LAUNCHERS = {"none": (), "survives": ("launch.py", "survives"), "dies": ("launch.py", "dies")}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Returns a function that starts stand-ins for `longmlm run`, a launcher and training with some loader workers."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("run.py", RUN), ("train.py", TRAIN), ("launch.py", LAUNCH)):
        Path(name).write_text(text, encoding="utf-8")

    def started(launcher: str, num_workers: int) -> subprocess.Popen[str]:
        command = [sys.executable, "run.py", *LAUNCHERS[launcher], "train.py", str(num_workers)]
        environment = {**os.environ, "PYTHONPATH": SOURCES}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return started


def named(pattern: str) -> list[Path]:
    return sorted(Path().glob(pattern))


def family_of(process: subprocess.Popen[str], num_trainers: int, pattern: str = "trains-*") -> list[psutil.Process]:
    """Returns the process and all below it, once so many processes train."""
    assert wait_until(lambda: len(named(pattern)) == num_trainers, 60)
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


@pytest.mark.parametrize(
    ("launcher", "num_workers"), [("none", 0), ("none", 1), ("none", 2), ("survives", 0), ("survives", 2), ("dies", 1)]
)
def test_sigterm_reaches_every_trainer_once_and_nothing_else(start, launcher: str, num_workers: int) -> None:
    process, num_trainers = start(launcher, num_workers), 1 if launcher == "none" else 2
    family = family_of(process, num_trainers)
    assert len(family) == 1 + (launcher != "none") + num_trainers * (1 + num_workers)
    process.terminate()
    assert process.communicate(timeout=60)[0] == "0 SIGTERM\n"
    assert [path.read_text() for path in named("saved-*")] == ["1"] * num_trainers
    assert named("signal-to-*") == []
    assert not psutil.wait_procs(family, 30)[1]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_to_all_processes_ends_after_training_has_saved(start, launcher: str) -> None:
    """As scancel and a terminal send it; a launcher may die of it, and leave processes that still save."""
    process, num_trainers = start(launcher, 1), 1 if launcher == "none" else 2
    family = family_of(process, num_trainers)
    for one in family:
        one.terminate()
    printed = process.communicate(timeout=60)[0]
    assert len(named("saved-*")) == num_trainers
    assert printed == ("-15 SIGTERM\n" if launcher == "dies" else "0 SIGTERM\n")
    assert not psutil.wait_procs(family, 30)[1]


def test_a_trainer_that_registers_after_the_signal_gets_it_when_the_launcher_is_gone(start) -> None:
    Path("hold").touch()
    process = start("dies", 0)
    family = family_of(process, 2, "started-*")
    process.terminate()
    assert not psutil.wait_procs([family[1]], 30)[1]  # the launcher: no other process had registered
    assert named("saved-*") == [] and process.poll() is None
    Path("hold").unlink()
    assert process.communicate(timeout=60)[0] == "-15 SIGTERM\n"
    assert len(named("saved-*")) == 2
    assert not psutil.wait_procs(family, 30)[1]


def test_when_a_launcher_is_killed_its_trainers_save_and_are_waited_for(start) -> None:
    process = start("survives", 1)
    family = family_of(process, 2)
    family[1].kill()
    assert process.communicate(timeout=60)[0] == "-9 \n"
    assert [path.read_text() for path in named("saved-*")] == ["1", "1"]
    assert not psutil.wait_procs(family, 30)[1]


def test_a_stage_receives_its_settings_and_its_error_comes_back(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ExtendConfig(base="no/model", output="long", recipe=ExtendRecipe(num_positions=40))
    ended = run_stage_process("extend", settings, {**os.environ, "PYTHONPATH": SOURCES})
    assert (ended.code, ended.signal_name) == (2, "")
    assert isinstance(ended.error, ModelError) and "no/model" in str(ended.error)
    assert capfd.readouterr().err == f"error: {ended.error}\n"


def test_no_process_that_a_stage_starts_can_read_its_settings(tmp_path: Path) -> None:
    (tmp_path / "settings").write_bytes(pickle.dumps("planted"))
    code = """
import os, sys
from longmlm.processes import settings_from_parent
print(settings_from_parent(), os.readlink(f"/proc/self/fd/{sys.stdin.fileno()}"))
"""
    with (tmp_path / "settings").open("rb") as file:
        environment = {**os.environ, "PYTHONPATH": SOURCES}
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=file, env=environment, capture_output=True, check=True
        )
    assert done.stdout == b"planted /dev/null\n"


def test_the_error_of_a_process_comes_back_through_its_launcher(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("launch.py").write_text(LAUNCH, encoding="utf-8")
    Path("fail.py").write_text(FAIL, encoding="utf-8")
    ended = run_child([sys.executable, "launch.py", "dies", "fail.py"], {**os.environ, "PYTHONPATH": SOURCES})
    assert (ended.code, type(ended.error), str(ended.error)) == (2, DataError, "no rows")


def test_every_error_can_be_sent() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UserError)]
    assert len(kinds) > 10
    for kind in kinds:
        received = pickle.loads(pickle.dumps(kind("what is wrong")))
        assert (type(received), str(received)) == (kind, "what is wrong")


def test_only_children_of_this_name_are_killed_with_all_that_they_started(capfd) -> None:
    sleep = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    own, other = (
        subprocess.Popen([sys.executable, "-c", sleep], env={**os.environ, PARENT_VARIABLE: name})
        for name in ("own", "other")
    )
    assert wait_until(lambda: psutil.Process(own.pid).children() and psutil.Process(other.pid).children(), 60)
    [grandchild] = psutil.Process(own.pid).children()
    kill_registered("own")
    assert not psutil.wait_procs([grandchild], 10)[1]
    assert (own.wait(), other.poll()) == (-9, None)
    kill_registered("other")
    assert other.wait() == -9
    assert capfd.readouterr().err == "ended without saving\n" * 2
