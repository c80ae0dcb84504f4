"""What the stages find, and how a test runs one: as a user does, or in this process."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli_w
from transformers.utils.logging import disable_progress_bar, enable_progress_bar

from longmlm.config import parse
from longmlm.processes import user_errors
from longmlm.settings.release import ReleaseCard, ReleaseConfig
from longmlm.stages.release import release
from tests.support.finished import folder, project, started
from tests.support.tiny import (
    World,
    prove_in_this_process,
    release_settings,
    with_fresh_process_state,
)
from tests.support.training import ROOT, SOURCES
from tests.support.worlds import evaluation, run_folder, world

__all__ = [
    "evaluation",
    "folder",
    "project",
    "run_folder",
    "run_here",
    "run_there",
    "started",
    "world",
]


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable]:
    """Runs a stage from a TOML file in this process; returns exit code, standard output and standard error."""

    def run(kind: type, stage: Callable, settings: dict[str, object]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stage", str(_written(tmp_path, settings))])
        with_fresh_process_state()
        capsys.readouterr()
        try:
            with user_errors():
                stage(parse(kind, sys.argv[1:]))
        except SystemExit as stop:
            return int(stop.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    yield run
    with_fresh_process_state()


@pytest.fixture
def run_there(tmp_path: Path) -> Callable:
    """Runs a stage from a TOML file in a process of its own; returns exit code, standard output and standard error."""

    def run(stage: str, settings: dict[str, object]) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "longmlm", stage, str(_written(tmp_path, settings))]
        places = {"PYTHONPATH": SOURCES, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=os.environ | places, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def _written(folder: Path, settings: dict[str, object]) -> Path:
    path = folder / "stage.toml"
    path.write_text(tomli_w.dumps(settings), encoding="utf-8")
    assert tomllib.loads(path.read_text(encoding="utf-8")) == settings
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loads the released folder in this process, without the progress bar that another process would keep to itself."""
    prove_in_this_process(monkeypatch)
    disable_progress_bar()
    yield
    enable_progress_bar()


@pytest.fixture(scope="module")
def released_once(world: World, evaluation: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, in a folder of its own, that no test changes."""
    output = tmp_path_factory.mktemp("released") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        prove_in_this_process(patch)
        release(
            ReleaseConfig(
                **release_settings(world, evaluation, output) | {"card": ReleaseCard(title="t", license="mit")}
            )
        )
    return output
