"""A whole pipeline whose settings leave the precision to the machine, on one with bf16 instructions and one without."""

import json
from pathlib import Path

from longmlm.artifacts.evaluation import Evaluation, read_evaluation
from longmlm.artifacts.provenance import read_provenance
from longmlm.training.run_folder import newest_verified, read_state
from tests.support.commands import Command, command
from tests.support.families import demo_texts
from tests.support.tiny import PIPELINE, tiny_folder

__all__ = ["command"]
SETTINGS = f"""{PIPELINE.replace('precision = "no"', "")}
[evaluate.recipe]
held_out.max_rows = 16
[release]
recipe.allow_unrecovered = true
recipe.allow_worse_short_texts = true
card.license = "mit"
"""


def test_a_pipeline_trains_evaluates_and_releases_in_what_auto_means(
    command: Command, tmp_path: Path, auto_precision: str
) -> None:
    tiny_folder(tmp_path / "base")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in demo_texts())
    (tmp_path / "text.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(SETTINGS, encoding="utf-8")
    command("run", "mine.toml")
    out = tmp_path / "out"
    assert read_state(newest_verified(out / "run").folder).precision == auto_precision
    assert read_evaluation(out / "evaluation" / Evaluation.FILE).precision == auto_precision
    assert read_provenance(out / "release").trained.precision == auto_precision
    assert {"no": "fp32 (auto)", "bf16": "bf16 (auto)"}[auto_precision] in (out / "release" / "README.md").read_text()
