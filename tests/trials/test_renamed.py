"""A trial is the same when what it reads or writes has another path: it is not made anew."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.config import read
from longmlm.data.engine import prepare_rows
from longmlm.data.labelled import read_labelled
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError
from longmlm.settings.compare import ComparedPipeline
from longmlm.settings.downstream import DownstreamConfig
from longmlm.settings.shipped import PACKAGE
from longmlm.staleness import check_text
from longmlm.trials import downstream_planned, planned
from longmlm.trials.running import Trials
from tests.support.prepare_settings import written
from tests.support.two_classes import labelled_records, write_records

COMPARE = """
model = "{model}"
corpus = ["{text}"]
length = 384
output = "{output}"
[prepare.recipe]
held_out_fraction = 0.3
[compare.arms.a]
[compare.arms.b.extend.recipe]
initialisation = "tile"
"""
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


def compared(names: dict[str, str]) -> dict[str, str]:
    config = read(ComparedPipeline, [Path(written(Path(), "mine.toml", COMPARE.format(**names)))])
    return planned.planned_trial(config, "a", {}, 42).stages


def fine_tuned(names: dict[str, str]) -> tuple[str, str]:
    config = read(DownstreamConfig, [Path(written(Path(), "task.toml", DOWNSTREAM.format(**names)))])
    inputs = downstream_planned.inputs_of(config, read_labelled(config.task))
    trial = downstream_planned.planned_trial(config, inputs, "a", {"learning_rate": 1e-3, "num_epochs": 1}, (42, 0))
    return trial.settings_sha256, Path(str(trial.vectors)).name


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("rename", [lambda name: f"./{name}", os.path.abspath, linked, moved])
@pytest.mark.parametrize("trial", [compared, fine_tuned])
def test_another_path_of_the_same_thing_does_not_change_a_trial(
    trial: Callable[[dict[str, str]], object], rename: Callable[[str], str], changed: str
) -> None:
    before = trial(NAMES)
    assert trial(NAMES | {changed: rename(NAMES[changed])}) == before


def test_another_model_changes_a_trial() -> None:
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    other = NAMES | {"model": "other"}
    assert compared(other) != compared(NAMES)
    assert all(one != another for one, another in zip(fine_tuned(other), fine_tuned(NAMES), strict=True))


def test_other_labels_change_a_trial() -> None:
    before = fine_tuned(NAMES)
    write_records(Path("docs.jsonl"), labelled_records(22))
    assert fine_tuned(NAMES)[0] != before[0]


def test_a_comparison_of_rows_of_other_text_is_refused() -> None:
    config = read(ComparedPipeline, [Path(written(Path(), "mine.toml", COMPARE.format(**NAMES)))])
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    trial = planned.planned_trial(config, "a", {}, 42)
    shutil.copytree("out/rows", "moved/rows")
    check_text(replace(trial.pipeline.prepare, output="moved/rows"))
    write_records(Path("docs.jsonl"), labelled_records(22))
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now"):
        Trials(config).run([trial], 1)
    Path("docs.jsonl").unlink()
    check_text(trial.pipeline.prepare)
