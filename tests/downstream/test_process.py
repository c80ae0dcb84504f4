"""The downstream command as a user starts it: a page, and models that transformers loads."""

from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.settings.shipped import PACKAGE
from tests.downstream.labelled import json_bytes, two_classes
from tests.support.launching import longmlm as run_longmlm

NUM_DOCUMENTS, NUM_TRIALS = 24, 4
FINISHED = f"*/*/*/{DownstreamTrial.FILE}"  # not rglob: it enters folders that are being renamed
TASK = """
output = "out"
[task]
kind = "classification"
num_folds = 2
data.files = ["docs.jsonl"]
[recipe]
learning_rate = [1e-3]
num_epochs = [2]
documents_per_step = 4
precision = "no"
[runtime]
num_threads = 1
[arms.truncate]
model = "bundled:roberta-mini"
length = 64
[arms.tfidf]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs.jsonl").write_bytes(json_bytes([*two_classes(NUM_DOCUMENTS), {"id": "x", "text": "No label."}]))
    (tmp_path / "task.toml").write_text(TASK, encoding="utf-8")
    return tmp_path


def test_arms_are_compared(folder: Path) -> None:
    trials = folder / "out" / "downstream" / "trials"
    code, lines = run_longmlm(folder, "downstream", "task.toml")
    assert code == 0, lines[-20:]
    assert sum(line.endswith(" starts") for line in lines) == len([*trials.glob(FINISHED)]) == NUM_TRIALS
    assert lines[0] == "24 documents: sea 12, land 12"
    comparison = artifact.read(DownstreamComparison, folder / "out" / "downstream" / DownstreamComparison.FILE)
    assert comparison.failed == ()
    assert {arm.arm: arm.num_documents for arm in comparison.arms} == {"truncate": 24, "tfidf": 24}
    assert next(arm for arm in comparison.arms if arm.arm == "tfidf").scores[0].mean == 100
    page = (folder / "out" / "downstream" / "index.html").read_text(encoding="utf-8")
    assert "truncate" in page and "tfidf" in page and str(PACKAGE) not in page
    [model] = trials.glob("*/*/*/model")
    assert AutoModelForSequenceClassification.from_pretrained(model).config.id2label == {0: "land", 1: "sea"}
