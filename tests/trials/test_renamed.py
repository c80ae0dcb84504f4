"""A trial is the same when what it reads or writes has another path: it is not made anew."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.config import read
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError
from longmlm.settings.compare import ComparedPipeline
from longmlm.settings.shipped import PACKAGE
from longmlm.staleness import check_text
from longmlm.trials import planned
from longmlm.trials.running import Trials
from tests.support.prepare_settings import written

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


def write_text(num_documents: int) -> None:
    """Writes documents of some 220 tokens."""
    texts = [
        f"Story {number}. {'The people of this story walked on and talked. ' * 20}" for number in range(num_documents)
    ]
    Path("docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(PACKAGE / "bundled" / "roberta-mini", "base")
    write_text(20)


def compared(names: dict[str, str]) -> dict[str, str]:
    config = read(ComparedPipeline, [Path(written(Path(), "mine.toml", COMPARE.format(**names)))])
    return planned.planned_trial(config, "a", {}, 42).stages


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("rename", [lambda name: f"./{name}", os.path.abspath, linked, moved])
def test_another_path_of_the_same_thing_does_not_change_a_trial(rename: Callable[[str], str], changed: str) -> None:
    assert compared(NAMES | {changed: rename(NAMES[changed])}) == compared(NAMES)


def test_another_model_changes_a_trial() -> None:
    shutil.copytree("base", "other")
    (Path("other") / "config.json").write_text((Path("base") / "config.json").read_text() + "\n")
    other = NAMES | {"model": "other"}
    assert compared(other) != compared(NAMES)


def test_a_comparison_of_rows_of_other_text_is_refused() -> None:
    config = read(ComparedPipeline, [Path(written(Path(), "mine.toml", COMPARE.format(**NAMES)))])
    prepare_rows(config.prepare.recipe, load_vocabulary("base"), Path("out/rows"))
    trial = planned.planned_trial(config, "a", {}, 42)
    shutil.copytree("out/rows", "moved/rows")
    check_text(replace(trial.pipeline.prepare, output="moved/rows"), is_needed=False)
    write_text(22)
    with pytest.raises(DataError, match="out/rows was made from other text than the corpus holds now"):
        Trials(config).run([trial], 1)
    Path("docs.jsonl").unlink()
    check_text(trial.pipeline.prepare, is_needed=False)
