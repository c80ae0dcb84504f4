"""Trials as real processes: which run, resume, start anew, fail and stop."""

from dataclasses import replace
from pathlib import Path

import pytest

from longmlm.errors import ArtifactError, FolderError, TrainingError
from longmlm.experiments.processes import LOG, PlannedTrial, Trials, error_in, has_finished

MODULE = """
import os, signal, sys, time
from pathlib import Path
folder, task = Path(sys.argv[1]), Path(sys.argv[1], "trial.toml").read_text()
if task == "fails at once":
    sys.exit("error: no such text")
(folder / "run").mkdir(exist_ok=True)
with (folder / "attempts").open("a") as file:
    print(task, file=file)
if task == "fails":
    sys.exit("error: the loss is not finite")
if task == "stops" and not (folder / "checkpoint").exists():
    (folder / "checkpoint").touch()
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
if task != "writes nothing":
    (folder / "result.json").write_text(task)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_trial.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def planned(task: str = "works", name: str = "a", **key: str) -> PlannedTrial:
    return PlannedTrial(
        name=name,
        folder=Path("trials", name),
        key={"settings": "1", "rows": "1", **key},
        files={"trial.toml": task},
        module="fake_trial",
        arguments=(f"trials/{name}",),
        training="run",
        result="result.json",
    )


def attempts(name: str = "a") -> list[str]:
    return Path("trials", name, "attempts").read_text().splitlines()


def test_a_finished_trial_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert not has_finished(planned())
    outcomes = [Trials(2).run(trial) for trial in (planned(), planned("other file"), replace(planned(), key={}))]
    assert [outcome.was_finished for outcome in outcomes] == [False, True, True]
    assert {(outcome.label, outcome.error) for outcome in outcomes} == {("[1/2] a", "")}
    assert attempts() == ["works"] and capsys.readouterr().out == "[1/2] a starts\n"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": {"settings": "2", "rows": "2"}}, "other settings and rows"),
        ({"missing": "its weights are gone"}, "its weights are gone"),
    ],
)
def test_an_earlier_result_moves_aside(
    capsys: pytest.CaptureFixture[str], changes: dict[str, object], reason: str
) -> None:
    Trials(1).run(planned("earlier"))
    trial = replace(planned("later"), **changes)
    assert not has_finished(trial)
    assert not Trials(1).run(trial).was_finished
    assert attempts() == ["later"] and attempts("a.earlier") == ["earlier"]
    assert f"a starts over: {reason}; its earlier result is now in trials/a.earlier" in capsys.readouterr().out


def test_a_further_part_goes_on_with_what_is_there() -> None:
    Trials(1).run(planned())
    assert not has_finished(planned(evaluate="1"))
    Trials(1).run(planned(evaluate="1"))
    assert has_finished(planned(evaluate="1")) and has_finished(planned())
    assert attempts() == ["works", "works"] and not Path("trials/a.earlier").exists()


@pytest.mark.parametrize("rows", ["1", "2"])
def test_a_broken_off_trial_resumes_or_is_removed(capsys: pytest.CaptureFixture[str], rows: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        Trials(1).run(planned("stops"))
    assert stopped.value.code == 143
    assert "[1/1] a stopped by SIGTERM: run the same command again to resume" in capsys.readouterr().err
    assert not Trials(1).run(planned("stops" if rows == "1" else "works", rows=rows)).was_finished
    assert ("starts over: other rows" in capsys.readouterr().out) == (rows == "2")
    assert attempts() == (["stops", "stops"] if rows == "1" else ["works"])


def test_only_a_first_trial_that_did_not_train_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match=r"^a failed: no such text; its output is in trials/a/log.txt$"):
        Trials(3).run(planned("fails at once"))
    trials = Trials(4)
    outcomes = [trials.run(planned(task, name=name)) for task, name in (("fails", "b"), ("fails at once", "c"))]
    assert [outcome.error for outcome in outcomes] == ["the loss is not finite", "no such text"]
    assert trials.run(planned("writes nothing", name="d")).error == "it wrote no result.json"
    assert trials.run(planned()).error == ""
    assert "[1/4] b failed: the loss is not finite; its output is in trials/b/log.txt" in capsys.readouterr().out
    trials.run(planned("fails", name="b"))
    assert "[1/4] b resumes" in capsys.readouterr().out and len(attempts("b")) == 2


def test_a_folder_of_something_else_stays() -> None:
    Path("trials/a").mkdir(parents=True)
    Path("trials/a/thesis.tex").touch()
    with pytest.raises(FolderError, match="was not made by longmlm"):
        Trials(1).run(planned())
    assert Path("trials/a/thesis.tex").exists()


def test_a_damaged_record_is_refused_with_the_remedy() -> None:
    Trials(1).run(planned())
    Path("trials/a/record.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"record.json is damaged.*; to run the trial again, move trials/a away"):
        Trials(1).run(planned())


def test_the_error_of_a_trial_is_longmlms_own_if_it_has_one(tmp_path: Path) -> None:
    log, earlier = tmp_path / LOG, "error: of an earlier attempt\n"
    tracker, own = "wandb failed (CommError: no answer); training is not affected", "error: the loss is not finite"
    log.write_text(f"{earlier}{tracker}\n{own}\nlast line\n", encoding="utf-8")
    assert error_in(log, len(earlier), 2) == own.removeprefix("error: ")
    log.write_text("Error:\nlast line\n", encoding="utf-8")
    assert error_in(log, 0, 1) == "Error:"
    for text, expected in ((f"{tracker}\nlast line\n", tracker), ("one\nlast line\n", "last line"), ("", "no output")):
        log.write_text(text, encoding="utf-8")
        assert error_in(log, 0, 1) == expected
        assert "killed by SIGKILL" in error_in(log, 0, -9)
