"""The downstream command around its trials: what it reads and prints, which trials run, and what it keeps of them."""

import json
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import FineTuned
from longmlm.config import parse
from longmlm.downstream.artifacts import DownstreamComparison
from longmlm.downstream.command import downstream
from longmlm.downstream.settings import DownstreamConfig
from longmlm.errors import DataError, FolderError, TrainingError
from longmlm.processes import exclusive_lock
from tests.downstream.fake_trials import FakeTrials
from tests.downstream.labelled import json_bytes, two_classes
from tests.support.prepare_settings import written

TASK = """
output = "out"
[task]
kind = "classification"
num_folds = 2
data.files = ["docs.jsonl"]
[recipe]
learning_rate = [1e-5, 2e-5]
num_epochs = [3]
seeds = [1, 2]
[arms.truncate]
model = "bundled:roberta-mini"
[arms.tfidf]
"""
FAULTY = [{"id": "a", "text": "", "label": "sea"}, {"id": "b", "text": "No label."}, {"id": "c", "text": "Nor here."}]
SLOW, FAST = "truncate/learning_rate-1e-05,num_epochs-3", "truncate/learning_rate-2e-05,num_epochs-3"
TRIALS = Path("out/downstream/trials")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_bytes(json_bytes([*two_classes(20), *FAULTY]))
    return written(tmp_path, "task.toml", TASK)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeTrials:
    return FakeTrials(monkeypatch)


def run(*arguments: str) -> None:
    downstream(parse(DownstreamConfig, arguments))


def comparison() -> DownstreamComparison:
    return artifact.read(DownstreamComparison, Path("out/downstream/downstream.json"))


def test_documents_folds_and_trials_are_summarised_first(
    task: str, runs: FakeTrials, capsys: pytest.CaptureFixture[str]
) -> None:
    run(task)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "20 documents: sea 10, land 10"
    assert lines[1] == (
        "records set aside: no field 'label' (2, the first at line 22 of docs.jsonl), field 'text' is empty (1, the "
        "first at line 21 of docs.jsonl); see out/downstream/set_aside"
    )
    assert lines[2].startswith("2 folds, the first with ") and lines[2].endswith(", 10 test documents")
    assert lines[3] == "2 arms, 9 trials"
    assert lines[4] == "[1/9] truncate, learning_rate 1e-05, num_epochs 3, seed 1, fold 0 starts"
    assert "page: out/downstream/index.html" in lines
    text = Path("out/downstream/set_aside/records.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    assert len(records) == len(FAULTY)
    assert all(record["origin"].startswith("docs.jsonl:") and record["reason"] for record in records)


def test_finished_trials_are_not_repeated(task: str, runs: FakeTrials) -> None:
    run(task)
    run(task, "--runtime.num-threads", "1", "--baseline", "tfidf")  # which change no result
    assert len(runs.started) == 9
    arm = written(Path(), "more.toml", '[arms.last]\nmodel = "bundled:roberta-mini"\nreads = "last"\n')
    run(task, arm, "--recipe.learning-rate", "1e-5", "2e-5", "3e-5")
    assert len(runs.started) == 9 + 1 + 3 + 3
    assert not any("tfidf" in name for name in runs.names[9:])


def test_the_best_values_by_the_development_score_run_on_all_seeds_and_folds(task: str, runs: FakeTrials) -> None:
    run(task)
    assert runs.names[3:6] == [f"{FAST}/{one}" for one in ("seed-1-fold-1", "seed-2-fold-0", "seed-2-fold-1")]


def test_failed_trials_end_the_command_with_an_error_after_the_report(
    task: str, runs: FakeTrials, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failures = lambda trial: "error: the loss is not finite" if trial.values and trial.seed == 2 else ""
    with pytest.raises(TrainingError, match=r"^2 of 9 trials failed: fix what failed, and run the same command again$"):
        run(task)
    assert [(one.seed, one.fold, one.reason) for one in comparison().failed] == [
        (2, fold, "the loss is not finite") for fold in (0, 1)
    ]
    assert "page: out/downstream/index.html\n2 of 9 trials failed; " in capsys.readouterr().out
    runs.failures = lambda _: ""
    run(task)
    assert len(runs.started) == 11 and comparison().failed == ()


def test_only_the_best_trial_of_an_arm_keeps_its_model_unless_all_are_kept(
    task: str, runs: FakeTrials, capsys: pytest.CaptureFixture[str]
) -> None:
    run(task)
    assert [str(path.parent.relative_to(TRIALS)) for path in TRIALS.rglob("model")] == [f"{FAST}/seed-2-fold-0"]
    assert not [*TRIALS.rglob("checkpoints")]
    kept = artifact.read(FineTuned, TRIALS / FAST / "seed-2-fold-0" / FineTuned.FILE)
    assert "| truncate |" in kept.comparison and "differences are to `truncate`" in kept.comparison
    run(task, "--keep-weights")
    assert len([*TRIALS.rglob("model")]) == 5
    assert len(runs.started) == 9 + 4
    assert capsys.readouterr().out.count("starts over: its model was removed") == 4


def test_faults_of_the_documents_are_found_before_any_trial(task: str, runs: FakeTrials) -> None:
    Path("docs.jsonl").write_bytes(json_bytes([{"text": f"Text {number}.", "label": "sea"} for number in range(9)]))
    with pytest.raises(DataError, match="'sea' is the only class of 9 training documents"):
        run(task)
    assert runs.started == []


def test_a_folder_in_use_or_that_cannot_be_created_is_refused(task: str, runs: FakeTrials) -> None:
    with exclusive_lock(Path("out/downstream")), pytest.raises(FolderError, match="being written by another process"):
        run(task)
    with pytest.raises(FolderError, match=r"^/proc/none.* cannot be created: name a different path$"):
        run(task, "--output", "/proc/none")
