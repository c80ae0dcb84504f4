"""A trial is the same when what it reads or writes has another path: it is not made anew."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm.config import read
from longmlm.data.labelled import read_labelled
from longmlm.settings.downstream import DownstreamConfig
from longmlm.settings.shipped import PACKAGE
from longmlm.trials import downstream_planned
from tests.support.prepare_settings import written
from tests.support.two_classes import labelled_records, write_records

DOWNSTREAM = """
output = "{output}"
[task]
kind = "classification"
data.files = ["{text}"]
[arms.a]
model = "{model}"
frozen = true
"""
NAMES = {"model": "base", "text": "docs.jsonl", "output": "out"}


def moved(name: str) -> str:
    Path("elsewhere").mkdir()
    if Path(name).exists():
        shutil.move(name, f"elsewhere/{name}")
    return f"elsewhere/{name}"


def linked(name: str) -> str:
    Path(name).exists() or Path(name).mkdir()
    Path("elsewhere").mkdir()
    Path(f"elsewhere/{name}").symlink_to(Path(name).resolve())
    return f"elsewhere/{name}"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    write_records(Path("docs.jsonl"), labelled_records(20))


def fine_tuned(names: dict[str, str]) -> tuple[str, str]:
    config = read(DownstreamConfig, [Path(written(Path(), "task.toml", DOWNSTREAM.format(**names)))])
    inputs = downstream_planned.inputs_of(config, read_labelled(config.task))
    trial = downstream_planned.planned_trial(config, inputs, "a", {"learning_rate": 1e-3, "num_epochs": 1}, (42, 0))
    return trial.settings_sha256, Path(str(trial.vectors)).name


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("rename", [lambda name: f"./{name}", os.path.abspath, linked, moved])
def test_another_path_of_the_same_thing_does_not_change_a_trial(rename: Callable[[str], str], changed: str) -> None:
    before = fine_tuned(NAMES)
    assert fine_tuned(NAMES | {changed: rename(NAMES[changed])}) == before


def test_another_model_changes_a_trial() -> None:
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    other = NAMES | {"model": "other"}
    assert all(one != another for one, another in zip(fine_tuned(other), fine_tuned(NAMES), strict=True))


def test_other_labels_change_a_trial() -> None:
    before = fine_tuned(NAMES)
    write_records(Path("docs.jsonl"), labelled_records(22))
    assert fine_tuned(NAMES)[0] != before[0]
