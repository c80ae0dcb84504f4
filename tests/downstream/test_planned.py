"""What the result of a trial depends on: not on where its documents, its model and its output lie."""

import shutil
from pathlib import Path

import pytest

from longmlm.config import parse, read
from longmlm.downstream.documents import read_labelled
from longmlm.downstream.planned import arm_trials, combinations, planned_trial
from longmlm.downstream.settings import DownstreamConfig
from longmlm.errors import ModelError
from longmlm.experiments.experiment import Trial
from longmlm.settings.shipped import PACKAGE
from tests.downstream.labelled import json_bytes, two_classes
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
VALUES = {"learning_rate": 1e-3, "num_epochs": 1}
NAMES = {"model": "base", "text": "docs.jsonl", "output": "out"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    Path("docs.jsonl").write_bytes(json_bytes(two_classes(20)))


def key_of(names: dict[str, str], more: str = "") -> dict[str, str]:
    config = read(DownstreamConfig, [Path(written(Path(), "task.toml", TASK.format(**names) + more))])
    arm = arm_trials(config, read_labelled(config.task))["a"]
    return planned_trial(config, arm, Trial(arm="a", values=VALUES, seed=42)).key


def test_another_path_of_the_same_things_does_not_change_a_trial() -> None:
    before = key_of(NAMES)
    assert key_of({name: f"./{path}" for name, path in NAMES.items()}) == before
    assert key_of({name: str(Path(path).absolute()) for name, path in NAMES.items()}) == before
    Path("elsewhere").mkdir()
    for name in ("base", "docs.jsonl"):
        shutil.move(name, f"elsewhere/{name}")
    assert key_of({name: f"elsewhere/{path}" for name, path in NAMES.items()}) == before


def test_other_contents_and_settings_change_a_trial() -> None:
    before = key_of(NAMES)
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    for changed, names, more in (
        ("model", NAMES | {"model": "other"}, ""),
        ("settings", NAMES, "length = 32\n"),
        ("settings", NAMES, "[recipe]\npatience = 1\n"),
    ):
        after = key_of(names, more)
        assert [part for part in before if before[part] != after[part]] == [changed]
    Path("docs.jsonl").write_bytes(json_bytes(two_classes(22)))
    assert key_of(NAMES)["documents"] != before["documents"]
    assert key_of(NAMES, "[runtime]\nnum_threads = 1\n")["settings"] == before["settings"]


def test_a_length_beyond_the_positions_of_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"base has \d+ positions, but arms.a.length is 4096: lower it, or extend"):
        key_of(NAMES, "length = 4096\n")


@pytest.mark.parametrize("path", sorted(TASKS.glob("*.toml")), ids=lambda path: path.stem)
def test_tasks_of_the_experiments_are_valid(path: Path) -> None:
    config = parse(DownstreamConfig, [str(path)])
    assert (config.task.kind == "classification") == any(arm.model is None for arm in config.arms.values())
    assert all(combinations(config.recipe, arm) for arm in config.arms.values()) and len(config.arms) > 2
