"""A pipeline from Python: the stages and results of the command, in processes of its own; its errors are raised."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

import longmlm
from longmlm.api import pipelines
from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.config import parse
from longmlm.errors import CheckpointError, ConfigError, DataError, FolderError, ModelError, PipelineError
from longmlm.folders import verify
from longmlm.processes import exclusive_lock
from longmlm.reports.evaluation import finding
from longmlm.runtime.children import Ended, run_child
from longmlm.runtime.signals import StopSignalError
from longmlm.settings.pipeline import RunConfig
from longmlm.training.run_folder import newest_state
from tests.support.commands import command
from tests.support.launching import has_steps
from tests.support.terminal import wait_until
from tests.support.tiny import PIPELINE, tiny_project
from tests.support.training import SOURCES

__all__ = ["command"]
RELEASED = {
    "extend": {"recipe": {"initialisation": "distilled", "distillation": {"num_tokens": 160, "precision": "no"}}},
    "pretrain.recipe.num_steps": 2,
    "evaluate": {"recipe": {"precision": "no", "held_out": {"max_rows": 8}}},
    "release": {"recipe": {"allow_unrecovered": True, "allow_worse_short_texts": True}},
}
SCRIPT = """
import longmlm  # a script without a __main__ guard, as a notebook is
result = longmlm.run("mine.toml", output="scripted", until="extend", **{"pretrain.recipe.num_steps": 2})
print("long model:", result.long_model)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    return tmp_path


@pytest.fixture
def resolved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The settings of the pipelines that would run; none does."""
    configs: list[RunConfig] = []
    monkeypatch.setattr(pipelines, "run_stages", configs.append)
    monkeypatch.setattr(pipelines, "_result", lambda _: pipelines.PipelineResult(*[None] * 5))
    return configs


@pytest.mark.usefixtures("command")  # the stages run in this process
def test_a_pipeline_runs_to_its_release_is_then_done_and_goes_on(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = longmlm.run(tomllib.loads(PIPELINE), **RELEASED)
    printed = capfd.readouterr().out
    assert [number for number in range(1, 6) if f"[{number}/5]" not in printed] == []
    assert [result.rows, result.long_model, result.run, result.evaluation, result.release] == [
        Path("out") / name for name in ("rows", "long", "run", "evaluation", "release")
    ]
    assert verify(result.release)
    evaluation = read_evaluation(result.evaluation / Evaluation.FILE)
    assert (result.finding, result.is_recovered) == (finding(evaluation), evaluation.is_recovered)
    written = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.name != "pipeline.toml"}
    assert longmlm.run(tomllib.loads(PIPELINE), **RELEASED) == result
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert "[5/5] release: already done" in capfd.readouterr().out
    longmlm.run(tomllib.loads(PIPELINE), more_steps=1, until="pretrain", **RELEASED)
    assert "[3/3] pretrain: started" in capfd.readouterr().out
    state = newest_state(result.run)
    assert (state.state.step, state.num_steps) == (3, 3)


def test_a_script_without_a_guard_runs_it_once(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout.count("[1/1] extend: started") == 1
    assert done.stdout.splitlines()[-1] == "long model: scripted/long"


@pytest.mark.parametrize(
    ("parts", "overrides", "options"),
    [
        (["mine.toml"], {}, []),
        ([Path("mine.toml"), {"length": 44}], {}, ["--length", "44"]),
        ([tomllib.loads(PIPELINE)], {"length": 48}, ["--length", "48", "--pretrain.recipe.num-steps", "2"]),
        (["mine.toml"], {"pretrain": {"recipe": {"num_steps": 7}}}, ["--pretrain.recipe.num-steps", "7"]),
        (["mine.toml"], {"pretrain.recipe.num_steps": 7, "corpus": (Path("text.jsonl"),)},
         ["--pretrain.recipe.num-steps", "7"]),
        (["demo"], {"output": Path("out")}, ["demo"]),
    ],
)  # fmt: skip
def test_settings_are_those_of_the_command(
    resolved: list[RunConfig], parts: list[Any], overrides: dict[str, Any], options: list[str]
) -> None:
    longmlm.run(*parts, **overrides)
    if options == ["demo"]:
        expected = parse(RunConfig, ["demo", "--output", "out"])
    else:
        base = [] if isinstance(parts[0], Mapping) else ["mine.toml"]
        if not base:
            Path("other.toml").write_text(PIPELINE, encoding="utf-8")
        expected = parse(RunConfig, [*(base or ["other.toml"]), *options])
    assert resolved == [expected]


@pytest.mark.parametrize(
    ("parts", "overrides", "error", "said"),
    [
        (["mine.toml"], {"lenght": 44}, ConfigError, "unknown key lenght, did you mean length?"),
        (["mine.toml"], {"pretrain": {"recipe": {"steps": 4}}}, ConfigError, "unknown key pretrain.recipe.steps"),
        (["mine.toml"], {"pretrain.recipe.num_step": 4}, ConfigError, "did you mean num_steps?"),
        ([{"model": "base", "corpora": ["text.jsonl"], "length": 40, "output": "o"}], {}, ConfigError, "corpus"),
        ([{}], {}, ConfigError, "length is missing"),
        (["gone.toml"], {}, ConfigError, "gone.toml: no such TOML file"),
        (["mine.toml"], {"launch": "dpp"}, ConfigError, "did you mean ddp?"),
        (["mine.toml"], {"model": "no/such/folder"}, ModelError, "no such folder"),
        (["mine.toml"], {"corpus": ["gone.jsonl"]}, DataError, "gone.jsonl"),
        (["mine.toml"], {"output": "text.jsonl"}, FolderError, "text.jsonl"),
        (["mine.toml", {"more_steps": 3}], {}, ConfigError, "pass more_steps=N"),
        (["mine.toml"], {"pretrain.more_steps": 3}, ConfigError, "pass more_steps=N"),
        (["mine.toml"], {"more_steps": 0}, ConfigError, "more_steps must be at least 1"),
        (["mine.toml"], {"more_steps": 3}, CheckpointError, "continues a finished run, but out/run has no checkpoint"),
        ([3], {}, ValueError, "must be a path, a name or a mapping, not a int"),
        (["mine.toml", None], {}, ValueError, "must be a path"),
    ],
)
def test_wrong_settings_are_refused_in_one_line_before_anything_runs(
    resolved: list[RunConfig],
    parts: list[Any],
    overrides: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error) as raised:
        inspect.unwrap(longmlm.run)(*parts, **overrides)  # unwrapped: types are not checked as in other tests
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert resolved == [] and not Path("out").exists()


def test_a_folder_that_another_process_writes_to_is_refused(folder: Path) -> None:
    with exclusive_lock(Path("out")), pytest.raises(FolderError, match="^out is being written by another process"):
        longmlm.run("mine.toml", until="extend")


def test_an_error_of_a_stage_is_raised_with_its_line_and_is_the_cause(folder: Path) -> None:
    weights = Path("base/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PipelineError, match=r"^base/model\.safetensors is damaged") as raised:
        longmlm.run("mine.toml", until="extend")
    assert "\n" not in str(raised.value) and raised.value.exit_code == 2
    assert isinstance(raised.value.__cause__, ModelError)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt, which a process that a shell starts in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_command_and_is_raised(folder: Path) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not has_steps(Path("out/run"), 2) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        longmlm.run("mine.toml")
    thread.join()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert list(Path("out/run/checkpoints").iterdir())


SAVES = """
import signal, time
from pathlib import Path
signals = []
signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
Path("ready").touch()
while not signals:
    time.sleep(0.02)
time.sleep(0.3)
Path("saved").touch()
"""


@pytest.fixture
def saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Ended]]:
    """Runs a child that saves at SIGTERM, which this process then receives; how it treats it is restored."""
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def interrupt() -> None:
        assert wait_until(Path("ready").exists, 60)
        os.kill(os.getpid(), signal.SIGTERM)

    def run() -> Ended:
        threading.Thread(target=interrupt).start()
        return run_child([sys.executable, "-c", SAVES], os.environ)

    yield run
    signal.signal(signal.SIGTERM, before)


def test_sigterm_takes_effect_when_the_stage_has_saved(saves, resolved, folder, monkeypatch) -> None:
    raised: list[signal.Signals] = []

    def run_stages(_config: RunConfig) -> None:
        assert saves() == (0, "SIGTERM", None) and Path("saved").exists()
        raise StopSignalError(signal.SIGTERM)

    monkeypatch.setattr(pipelines, "run_stages", run_stages)
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with pytest.raises(PipelineError, match="^out: stopped by SIGTERM: the same call resumes") as caught:
        longmlm.run("mine.toml")
    assert (raised, caught.value.exit_code) == ([signal.SIGTERM], 143)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_caller_stays_and_what_it_raises_stops_the_stage(saves) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    with pytest.raises(SystemExit):
        saves()
    assert Path("saved").exists()
