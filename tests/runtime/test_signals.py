"""A stop signal takes effect at once, with one line, in every command and every phase of it, and cannot be lost."""

import importlib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType

import pytest

from longmlm import cli, needs, pipeline_files
from longmlm.__main__ import main
from longmlm.errors import STARTS_OVER
from longmlm.processes import PARENT_VARIABLE
from longmlm.runtime import signals
from longmlm.runtime.signals import (
    STOP_SIGNALS,
    StopSignalError,
    exit_at_once,
    exit_on_signal,
    stop_on_signal,
)
from tests.support.launching import launch_as_second_of_two

NOT_STARTED = "it had not started; run the same command again\n"
MODULES = {command: f"longmlm.{module}" for command, module in cli.MODULES.items()}
STAGE_PHASES = ("imports", "parsing", "checks", "imports of the stage")
PHASES = [  # each command and each phase; the phases are the same code for every command but init
    *(("pretrain", phase, number) for phase in STAGE_PHASES for number in STOP_SIGNALS),
    *((command, STAGE_PHASES[number % 4], STOP_SIGNALS[number % 2]) for number, command in enumerate(cli.COMMANDS)),
    *(("init", phase, number) for phase in STAGE_PHASES[:2] for number in STOP_SIGNALS),
]


class EndedError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The exit codes with which the process would have ended at once; the handlers are restored."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise EndedError

    monkeypatch.setattr(signals.os, "_exit", end)
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOP_SIGNALS}
    yield codes
    for number, handler in before.items():
        signal.signal(number, handler)


def receive(number: signal.Signals) -> None:
    """Receives a signal in code that catches whatever is raised, as some libraries do while they are imported."""
    with suppress(BaseException):
        signal.raise_signal(number)


class Library(ModuleType):
    """A module that receives a signal when a name is imported from it."""

    def __init__(self, name: str, number: signal.Signals) -> None:
        super().__init__(name)
        self.number = number

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        receive(self.number)
        return lambda *_: None


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function that runs a command without any of its work."""

    def run(command: str) -> None:
        monkeypatch.setattr(sys, "argv", ["longmlm", command])
        monkeypatch.setattr(cli, "hide_bars_off_terminal", lambda: None)
        main()

    monkeypatch.setattr(cli, "parse", lambda kind, *_: kind.__new__(kind))
    monkeypatch.setattr(needs, "check_inputs", lambda _: None)
    return run


@pytest.mark.parametrize("case", dict.fromkeys(PHASES))
def test_before_the_stage_starts_the_process_ends_though_libraries_catch_exceptions(
    case: tuple[str, str, signal.Signals], command_line, ends: list[int], monkeypatch, capfd
) -> None:
    command, phase, number = case
    stage = MODULES.get(command, f"longmlm.stages.{command}")
    match phase:
        case "imports":
            monkeypatch.setitem(sys.modules, "longmlm.cli", Library("longmlm.cli", number))
        case "parsing":
            module, name = (pipeline_files, "init") if command == "init" else (cli, "parse")
            monkeypatch.setattr(module, name, lambda *_: receive(number))
            monkeypatch.setitem(sys.modules, stage, Library(stage, signal.SIGCHLD))  # which is ignored
        case "checks":
            monkeypatch.setattr(needs, "check_inputs", lambda _: receive(number))
            monkeypatch.setitem(sys.modules, stage, Library(stage, signal.SIGCHLD))
        case _:
            monkeypatch.setitem(sys.modules, stage, Library(stage, number))
    command_line(command)
    assert ends == [128 + number]
    assert capfd.readouterr().err == f"stopped by {number.name}: {NOT_STARTED}"


@pytest.mark.parametrize(
    ("command", "number"), [(command, STOP_SIGNALS[number % 2]) for number, command in enumerate(cli.COMMANDS)]
)
def test_a_stage_cleans_up_and_the_process_ends_without_shutting_libraries_down(
    command: str, number: signal.Signals, command_line, ends: list[int], monkeypatch, capfd
) -> None:
    cleaned = []

    def stage(_config: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(command)

    module = ModuleType(MODULES.get(command, f"longmlm.stages.{command}"))
    setattr(module, command, stage)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(EndedError):
        command_line(command)
    assert (ends, cleaned) == ([128 + number], [command])
    resumes = command in ("prepare", "pretrain", "run", "compare", "downstream")
    line = rf"stopped by {number.name}: the same command {'resumes' if resumes else 'starts over'}\b.*\n"
    assert re.fullmatch(line, capfd.readouterr().err)


def wait_for_the_next_attempt() -> None:
    with pytest.raises(StopSignalError):
        signal.sigtimedwait([], 10)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_in_an_import_takes_effect_after_it(number: signal.Signals, tmp_path, monkeypatch, capfd) -> None:
    code = "import signal\ntry:\n    signal.raise_signal({})\nexcept BaseException:\n    pass\ndone = True\n"
    (tmp_path / "catching_library.py").write_text(code.format(int(number)))
    monkeypatch.syspath_prepend(tmp_path)
    with exit_on_signal(STARTS_OVER):
        assert importlib.import_module("catching_library").done
        wait_for_the_next_attempt()
    assert capfd.readouterr().err.count("stopped by") == 1
    del sys.modules["catching_library"]


class Resource:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_destructor_is_not_lost(capfd) -> None:
    with exit_on_signal(STARTS_OVER):
        Resource()
        wait_for_the_next_attempt()
    assert capfd.readouterr().err == "stopped by SIGTERM: the same command starts over\n"


@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, []), (signal.SIGINT, [130])])
def test_a_second_ctrl_c_ends_the_clean_up_and_a_second_sigterm_does_not(first, second, code, ends, capfd) -> None:
    def stage() -> None:
        with exit_on_signal(STARTS_OVER):
            try:
                signal.raise_signal(first)
            finally:
                receive(second)

    with pytest.raises(StopSignalError):
        stage()
    assert ends == code
    assert capfd.readouterr().err.count("\n") == 1


def test_ctrl_c_stays_ignored_where_the_shell_ignores_it() -> None:
    """As in `longmlm prepare mine.toml &` in a script; SIGTERM is never ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_at_once()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    with exit_on_signal(STARTS_OVER):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(StopSignalError):
            signal.raise_signal(signal.SIGTERM)
    with stop_on_signal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_name == "SIGTERM"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_training_answers_once_and_a_second_ctrl_c_ends_it(number: signal.Signals, ends: list[int], capfd) -> None:
    with stop_on_signal("finishing the step") as stop:
        assert not stop
        signal.raise_signal(number)
        stop.answer = "finishing another step"
        signal.raise_signal(signal.SIGTERM)
        assert (stop.signal_name, ends) == (number.name, [])
        [line] = capfd.readouterr().err.splitlines()
        assert line.endswith(" finishing the step")
        receive(signal.SIGINT)
    assert ends == [130]
    assert "the last checkpoint" in capfd.readouterr().err


def test_a_child_does_not_name_the_signal_that_its_parent_passes_on(ends, monkeypatch, capfd) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, "1")
    exit_at_once()
    receive(signal.SIGTERM)
    assert (ends, capfd.readouterr().err) == ([143], "stopped\n")


def test_only_one_process_of_a_machine_says_so(ends, monkeypatch, capfd) -> None:
    launch_as_second_of_two(monkeypatch)
    exit_at_once()
    receive(signal.SIGTERM)
    assert (ends, capfd.readouterr().err) == ([143], "")


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGALRM)]
    hook = sys.unraisablehook
    with exit_on_signal(STARTS_OVER):
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGALRM)] == before
    assert sys.unraisablehook is hook


def test_a_thread_and_a_program_with_its_own_handler_keep_their_handlers() -> None:
    def handler(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, handler)
    before = signal.getsignal(signal.SIGINT)
    kept: list[bool] = []

    def in_a_thread() -> None:
        with stop_on_signal():
            kept.append(signal.getsignal(signal.SIGINT) == before)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with stop_on_signal() as stop:
        kept.append(signal.getsignal(signal.SIGTERM) is handler)
        signal.raise_signal(signal.SIGINT)
    assert (kept, stop.signal_name) == ([True, True], "SIGINT")
