"""The compare command as a user starts it: trials share rows, and are evaluated."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import read_rows_manifest
from longmlm.compare.comparison import Comparison
from longmlm.config import read
from longmlm.settings.pipeline import ResolvedPipeline
from tests.support.launching import longmlm
from tests.support.tiny import PIPELINE, demo_texts, tiny_folder

EVALUATED = """
[evaluate.recipe]
precision = "no"
held_out.max_rows = 16
"""
ARMS = """
[compare]
until = "evaluate"
[compare.arms.hierarchical.extend.recipe]
initialisation = "hierarchical"
[compare.arms.tile.extend.recipe]
initialisation = "tile"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_folder(tmp_path / "base")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in demo_texts())
    (tmp_path / "text.jsonl").write_text(lines, encoding="utf-8")
    for name, text in {"mine.toml": PIPELINE + EVALUATED, "arms.toml": ARMS}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_two_arms_are_trained_and_compared(folder: Path) -> None:
    code, lines = longmlm(folder, "compare", "mine.toml", "arms.toml")
    assert code == 0, lines[-20:]
    comparison = artifact.read(Comparison, folder / "out" / "compare" / Comparison.FILE)
    assert [trial.arm for trial in comparison.trials] == ["hierarchical", "tile"]
    for trial in comparison.trials:
        assert len(trial.before.selected) == 16 and sum(trial.before.selected) == trial.before.whole.num_selected
        best = max(trial.curve[1:], key=lambda line: line.held_out.whole.accuracy or 0.0)  # the first of equal ones
        for view, measured in (("long_before", trial.before), ("long_after", best.held_out)):
            whole = trial.measured[view].whole
            assert replace(whole, loss=measured.whole.loss) == measured.whole
            assert whole.loss == pytest.approx(measured.whole.loss)
        assert trial.rows_sha256 == read_rows_manifest(folder / "out" / "rows").sha256
        assert trial.measured["base_chunks"].selected == trial.measured["long_after"].selected
    before = [trial.before.whole.loss for trial in comparison.trials]
    assert before[0] != before[1]
    assert {path.name for path in (folder / "out").iterdir()} == {"rows", "compare"}
    assert len(list(folder.glob("out/compare/trials/*/*/*/run/metrics.jsonl"))) == 2
    assert not list(folder.glob("out/compare/trials/*/*/*/run/checkpoints"))
    best = read(ResolvedPipeline, [folder / "out" / "compare" / "pipeline.toml"])
    assert best.extend is not None and best.extend.recipe.initialisation in {"hierarchical", "tile"}
