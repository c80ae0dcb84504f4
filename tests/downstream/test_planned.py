"""What the result of a trial depends on: not on where its documents, its model and its output lie."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm.config import parse, read
from longmlm.downstream.documents import read_labelled
from longmlm.downstream.planned import arms_of, num_trials, planned_trial
from longmlm.downstream.settings import DownstreamConfig
from longmlm.errors import ModelError
from longmlm.settings.shipped import PACKAGE
from tests.downstream.two_classes import labelled_records, write_records
from tests.support.prepare_settings import written

TASKS = Path(__file__).parents[2] / "docs" / "experiments" / "downstream"
TASK = """
output = "{output}"
[task]
kind = "classification"
data.files = ["{text}"]
[arms.a]
model = "{model}"
frozen = true
"""
NAMES = {"model": "base", "text": "docs.jsonl", "output": "out"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    write_records(Path("docs.jsonl"), labelled_records(20))


def key_of(names: dict[str, str], more: str = "") -> dict[str, str]:
    config = read(DownstreamConfig, [Path(written(Path(), "task.toml", TASK.format(**names) + more))])
    arms = arms_of(config, read_labelled(config.task))
    return planned_trial(config, arms["a"], {"learning_rate": 1e-3, "num_epochs": 1}, 42, 0).key


def moved(name: str) -> str:
    Path("elsewhere").mkdir()
    if Path(name).exists():
        shutil.move(name, f"elsewhere/{name}")
    return f"elsewhere/{name}"


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("rename", [lambda name: f"./{name}", os.path.abspath, moved])
def test_another_path_of_the_same_thing_does_not_change_a_trial(rename: Callable[[str], str], changed: str) -> None:
    before = key_of(NAMES)
    assert key_of(NAMES | {changed: rename(NAMES[changed])}) == before


def test_other_contents_and_settings_change_a_trial() -> None:
    before = key_of(NAMES)
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    for changed, names, more in (
        ("model", NAMES | {"model": "other"}, ""),
        ("settings", NAMES, "length = 32\n"),
        ("settings", NAMES, "[recipe]\nweight_decay = 0.1\n"),
    ):
        after = key_of(names, more)
        assert [part for part in before if before[part] != after[part]] == [changed]
    write_records(Path("docs.jsonl"), labelled_records(22))
    assert key_of(NAMES)["documents"] != before["documents"]
    assert key_of(NAMES, "[runtime]\nnum_threads = 1\n")["settings"] == before["settings"]


def test_a_length_beyond_the_positions_of_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"base has \d+ positions, but arms.a.length is 4096: lower it, or extend"):
        key_of(NAMES, "length = 4096\n")


@pytest.mark.parametrize("path", sorted(TASKS.glob("*.toml")), ids=lambda path: path.stem)
def test_tasks_of_the_experiments_are_valid(path: Path) -> None:
    config = parse(DownstreamConfig, [str(path)])
    assert (config.task.kind == "classification") == any(arm.model is None for arm in config.arms.values())
    assert num_trials(config) > len(config.arms) > 2
