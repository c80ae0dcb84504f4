"""The downstream command as a user starts it: stopped and resumed, a page, and models that transformers loads."""

import signal
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.settings.shipped import PACKAGE
from tests.downstream.labelled import json_bytes, two_classes
from tests.support.launching import finish, start_command, wait_until
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


def test_arms_are_compared_and_a_stopped_command_resumes(folder: Path) -> None:
    trials = folder / "out" / "downstream" / "trials"
    process = start_command(folder, "downstream", "task.toml")
    wait_until(lambda: [*trials.glob(FINISHED)], process, folder)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process, folder)
    assert code == 143, output
    assert "stopped by SIGTERM: run the same command again to resume" in output
    finished = {path: path.read_bytes() for path in trials.glob(FINISHED)}
    assert 1 <= len(finished) < NUM_TRIALS
    code, lines = run_longmlm(folder, "downstream", "task.toml")
    assert code == 0, lines[-20:]
    num_left = NUM_TRIALS - len(finished)  # a trial that was stopped right after its result ends at once
    assert num_left <= sum(line.endswith(" starts") for line in lines) <= num_left + 1
    assert {path: path.read_bytes() for path in finished} == finished
    assert lines[0] == "24 documents: sea 12, land 12"
    comparison = artifact.read(DownstreamComparison, folder / "out" / "downstream" / DownstreamComparison.FILE)
    assert comparison.failed == {}
    assert {arm.arm: arm.num_documents for arm in comparison.arms} == {"truncate": 24, "tfidf": 24}
    assert next(arm for arm in comparison.arms if arm.arm == "tfidf").scores[0].mean == 100
    page = (folder / "out" / "downstream" / "index.html").read_text(encoding="utf-8")
    assert "truncate" in page and "tfidf" in page and str(PACKAGE) not in page
    [model] = trials.glob("*/*/*/model")
    assert AutoModelForSequenceClassification.from_pretrained(model).config.id2label == {0: "land", 1: "sea"}
