"""The downstream command as a user starts it: stopped and resumed, every arm tested on all documents, a page."""

import signal
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longmlm
from longmlm.artifacts import artifact
from longmlm.downstream.artifacts import DownstreamComparison, DownstreamTrial
from longmlm.settings.shipped import PACKAGE
from tests.downstream.two_classes import labelled_records, write_records
from tests.support.launching import finish, start_command, wait_until
from tests.support.launching import longmlm as run_longmlm

MINI = PACKAGE / "bundled" / "roberta-mini"
NUM_DOCUMENTS, NUM_TRIALS = 24, 8
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
frozen_learning_rate = [1e-2]
frozen_num_epochs = [4]
documents_per_step = 4
precision = "no"
[runtime]
num_threads = 1
[arms.truncate]
model = "bundled:roberta-mini"
length = 64
[arms.last]
model = "extended"
reads = "last"
length = 160
[arms.chunks]
model = "bundled:roberta-mini"
reads = "chunks"
length = 64
frozen = true
[arms.tfidf]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    longmlm.export(longmlm.extend(MINI, 256), tokenizer, tmp_path / "extended")
    write_records(tmp_path / "docs.jsonl", [*labelled_records(NUM_DOCUMENTS), {"id": "x", "text": "No label."}])
    (tmp_path / "task.toml").write_text(TASK, encoding="utf-8")
    return tmp_path


def started(lines: list[str]) -> list[str]:
    """Returns the trials that were started, by name."""
    return [line.partition("] ")[2].removesuffix(" starts") for line in lines if line.endswith(" starts")]


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
    assert num_left <= len(started(lines)) <= num_left + 1
    assert {path: path.read_bytes() for path in finished} == finished
    assert lines[0] == "24 documents: sea 12, land 12"
    comparison = artifact.read(DownstreamComparison, folder / "out" / "downstream" / DownstreamComparison.FILE)
    assert {arm.arm: arm.num_documents for arm in comparison.arms} == dict.fromkeys(
        ("truncate", "last", "chunks", "tfidf"), NUM_DOCUMENTS
    )
    assert comparison.failed == {}
    scores = {arm.arm: arm.scores[0].mean for arm in comparison.arms}
    assert scores["tfidf"] == 100
    page = (folder / "out" / "downstream" / "index.html").read_text(encoding="utf-8")
    assert all(name in page for name in scores)
    assert str(PACKAGE) not in page
    models = sorted(path.parent.relative_to(trials).parts[0] for path in trials.rglob("model"))
    assert models == ["chunks", "last", "truncate"]
    [model] = trials.glob("truncate/*/*/model")
    assert AutoModelForSequenceClassification.from_pretrained(model).config.id2label == {0: "land", 1: "sea"}
    code, lines = run_longmlm(folder, "downstream", "task.toml")
    assert (code, started(lines)) == (0, [])
