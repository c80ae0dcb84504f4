"""Experiments: which trials run in which order, what is chosen, how failures are reported. No process is started."""

from collections.abc import Callable
from pathlib import Path

import pytest

from longmlm.artifacts.artifact import Artifact
from longmlm.errors import TrainingError
from longmlm.experiments.experiment import Experiment, FailedTrial, Trial, Values, experiment_page, folder_name
from longmlm.experiments.processes import Outcome, PlannedTrial
from longmlm.reports.pages import Head, Section
from longmlm.reports.tables import Table


class Fake(Experiment[Values, Artifact]):
    """Two arms, of which "searched" has two values to try, with two seeds on two folds; a higher rate is better."""

    def __init__(self, failures: Callable[[Trial], str], finished: tuple[str, ...] = ()) -> None:
        combinations = {"searched": [{"rate": 2.0}, {"rate": 1.0}], "plain": [{}]}
        super().__init__(combinations, [(seed, fold) for seed in (1, 2) for fold in (0, 1)])
        self.failures, self.before = failures, finished
        self.started: list[str] = []
        self.written: list[int] = []

    def planned(self, trial: Trial) -> PlannedTrial:
        pytest.fail(f"a process is started for {trial.name}")

    def run_trial(self, trial: Trial) -> Outcome:
        self.started.append(trial.name)
        return Outcome(trial.name, was_finished=trial.name in self.before, error=self.failures(trial))

    def finish(self, trial: Trial) -> tuple[Values, str]:
        return trial.values, "found"

    def rank(self, found: Values) -> float:
        return -found.get("rate", 0.0)

    def write(self) -> Artifact:
        self.written.append(len(self.results) + len(self.failed))
        return Artifact()


SEARCHED = ["searched, rate 2.0, seed 1, fold 0", "searched, rate 1.0, seed 1, fold 0"]
REPEATS = ["seed 1, fold 1", "seed 2, fold 0", "seed 2, fold 1"]


def test_all_values_run_with_the_first_seed_and_fold_and_the_best_with_all_others() -> None:
    experiment = Fake(lambda _: "")
    experiment.run_all()
    best = [f"searched, rate 2.0, {one}" for one in REPEATS]
    assert experiment.started == [*SEARCHED, "plain, seed 1, fold 0", *best, *(f"plain, {one}" for one in REPEATS)]
    assert experiment.num_trials == len(experiment.started)
    assert experiment.written == [*range(1, 10), 9], "after every trial"


def test_a_failed_trial_is_recorded_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Fake(lambda trial: "no space" if trial.values == {"rate": 2.0} else "", finished=(SEARCHED[1],))
    experiment.run_all()
    assert [failed.description for failed in experiment.failed] == [f"{SEARCHED[0]} failed: no space"]
    assert {trial.values["rate"] for trial, _ in experiment.results if trial.arm == "searched"} == {1.0}
    output = capsys.readouterr().out
    assert f"{SEARCHED[1]}: finished before, found" in output and output.count("finished before") == 1
    page = experiment_page(Head("t", "l"), [Section("Empty", "", Table(["a"], []))], experiment.failed, "")
    assert "no space" in page and "Failed trials" in page and "Empty" not in page
    assert "Failed trials" not in experiment_page(Head("t", "l"), [], [], "")


def test_an_arm_without_a_result_is_not_repeated() -> None:
    experiment = Fake(lambda trial: "no" if trial.arm == "searched" else "")
    experiment.run_all()
    assert len(experiment.started) == 3 + len(REPEATS)
    with pytest.raises(TrainingError, match=r"every trial failed: searched, rate 2.0, seed 1, fold 0 failed: no"):
        Fake(lambda _: "no").run_all()


def test_names_of_folders_are_plain_and_short() -> None:
    assert folder_name({}) == "as-given" and folder_name({"recipe.rate": 1e-4}) == "rate-0.0001"
    long, other = (folder_name({"model": f"../x/{'y' * 260}{end}"}) for end in "ab")
    assert long != other and len(long) < 120 and "/" not in long
    failed = FailedTrial(arm="a", values={"recipe.rate": 1e-4}, seed=42, reason="x")
    assert failed.name == "a, rate 0.0001, seed 42"
    assert failed.folder_in("out") == Path("out/trials/a/rate-0.0001/seed-42")
    assert Trial(arm="a", seed=42, fold=0).folder_in("out") == Path("out/trials/a/as-given/seed-42-fold-0")
