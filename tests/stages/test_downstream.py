"""The downstream command around its trials: what it reads and prints before the first one, and after the last."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.data.folds import folds_of
from longmlm.data.labelled import read_labelled
from longmlm.errors import DataError, FolderError, TrainingError
from longmlm.processes import exclusive_lock
from longmlm.settings.downstream import LabelledData, LabelledTask
from longmlm.stages.downstream import downstream, num_sharing_a_text
from tests.support.downstream_trials import FakeFinetunes, settings
from tests.support.prepare_settings import written
from tests.support.two_classes import labelled_records, write_records

TASK = """
output = "out"
[task]
kind = "classification"
num_folds = 2
data.files = ["docs.jsonl"]
[recipe]
learning_rate = [1e-5, 2e-5]
[arms.mini]
model = "bundled:roberta-mini"
[arms.tfidf]
"""
FAULTY = [{"id": "a", "text": "", "label": "sea"}, {"id": "b", "text": "No label."}, {"id": "c", "text": "Nor here."}]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "docs.jsonl", [*labelled_records(20), *FAULTY])
    return written(tmp_path, "task.toml", TASK)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeFinetunes:
    return FakeFinetunes(monkeypatch)


def test_documents_folds_and_trials_are_summarised_first(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    downstream(settings(task))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "20 documents: sea 10, land 10"
    assert lines[1] == (
        "records set aside: no field 'label' (2, the first at line 22 of docs.jsonl), field 'text' is empty (1, the "
        "first at line 21 of docs.jsonl); see out/downstream/set_aside"
    )
    assert lines[2] == "2 folds, the first with 9 training, 1 development, 10 test documents"
    assert lines[3] == "2 arms, 5 trials"
    assert lines[4] == "[1/5] mini, learning_rate 1e-05, num_epochs 4, seed 42, fold 0 starts"
    assert "page: out/downstream/index.html" in lines
    assert len(runs.started) == 5


def test_pairs_that_share_a_text_with_training_are_counted(task: str) -> None:
    pairs = [
        {"id": str(number), "text": f"Text {number % 2}.", "text2": f"Other {number}.", "label": number / 9}
        for number in range(10)
    ]
    write_records(Path("docs.jsonl"), pairs)
    data = LabelledData(files=("docs.jsonl",))
    config = LabelledTask(kind="similarity", data=data, num_folds=2)
    corpus = read_labelled(config)
    [fold, _] = folds_of(corpus, config, 42)
    assert num_sharing_a_text(corpus, fold) == len(fold.test) == 5
    distinct = replace(corpus, documents=tuple(replace(one, text=one.id) for one in corpus.documents))
    assert num_sharing_a_text(distinct, fold) == 0


def test_records_set_aside_are_listed_with_position_and_reason(task: str, runs: FakeFinetunes) -> None:
    downstream(settings(task))
    downstream(settings(task))
    text = Path("out/downstream/set_aside/records.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    assert len(records) == len(FAULTY)
    assert all(record["origin"].startswith("docs.jsonl:") and record["reason"] for record in records)


def test_faults_of_the_documents_are_found_before_any_trial(task: str, runs: FakeFinetunes) -> None:
    write_records(Path("docs.jsonl"), [{"text": f"Text {number}.", "label": "sea"} for number in range(9)])
    with pytest.raises(DataError, match="'sea' is the only class of 9 training documents"):
        downstream(settings(task))
    assert runs.started == []


def test_two_commands_do_not_write_to_one_folder(task: str, runs: FakeFinetunes) -> None:
    with exclusive_lock(Path("out/downstream")), pytest.raises(FolderError, match="being written by another process"):
        downstream(settings(task))


def test_changed_documents_make_trials_anew(task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]) -> None:
    downstream(settings(task))
    downstream(settings(task))
    assert len(runs.started) == 5
    write_records(Path("docs.jsonl"), labelled_records(22))
    downstream(settings(task))
    assert len(runs.started) == 10
    assert capsys.readouterr().out.count("starts anew: the documents or the model have changed") == 5


def test_a_failed_trial_ends_the_command_with_an_error_after_the_report(
    task: str, runs: FakeFinetunes, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failures = lambda trial: "error: the disk is full" if trial.values and trial.fold else ""
    with pytest.raises(TrainingError, match=r"^1 of 5 trials failed: .* run the same command again$"):
        downstream(settings(task))
    assert "page: out/downstream/index.html\n1 of 5 trials failed; " in capsys.readouterr().out
    runs.failures = lambda _: ""
    downstream(settings(task))
    assert len(runs.started) == 6


def test_a_folder_that_cannot_be_created_is_refused(task: str, runs: FakeFinetunes) -> None:
    with pytest.raises(FolderError, match=r"^/proc/none/downstream cannot be created: name a different path$"):
        downstream(settings(task, "--output", "/proc/none"))
