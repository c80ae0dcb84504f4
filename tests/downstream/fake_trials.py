"""Stands in for the processes of the downstream command: each trial writes what a real one leaves, without training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.fine_tuned import MODEL
from longmlm.config import read
from longmlm.downstream import command
from longmlm.downstream.artifacts import DownstreamTrial, Prediction
from longmlm.downstream.documents import read_labelled
from longmlm.downstream.page import write_fine_tuned
from longmlm.downstream.planned import TRAINING, TrialConfig
from longmlm.experiments import processes
from longmlm.experiments.processes import TRIAL


class FakeTrials:
    """Fine-tunes in no time. `started` are the trials that were trained, in their order.

    `failures` returns the error of a trial that fails, or nothing. A trial's development score is best for a rate of
    2e-5, and differs with seed and fold.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[TrialConfig] = []
        self.names: list[str] = []
        self.failures: Callable[[TrialConfig], str] = lambda _: ""
        monkeypatch.setattr(processes, "run_child", self.run_child)
        monkeypatch.setattr(command, "downstream_page", lambda *_: "page")  # the chart takes a second

    def run_child(self, arguments: Sequence[str], _: Mapping[str, str], log: Path, **__: str) -> tuple[int, str]:
        assert arguments[1:4] == ["-P", "-m", "longmlm.downstream.trial"]
        folder = Path(arguments[4])
        trial = read(TrialConfig, [folder / TRIAL])
        self.started.append(trial)
        self.names.append(str(folder).partition("/trials/")[2])
        if reason := self.failures(trial):
            (folder / TRAINING).mkdir(exist_ok=True)
            log.write_text(f"tokens\n{reason}\nend\n", encoding="utf-8")
            return 2, ""
        for name in (TRAINING, MODEL) if trial.values else ():
            (folder / name).mkdir(exist_ok=True)
        score = 80 - abs((trial.learning_rate or 2e-5) / 1e-5 - 2) + trial.seed / 100 - (trial.fold or 0) / 10
        result = DownstreamTrial(
            arm=trial.arm_name,
            values=trial.values,
            seed=trial.seed,
            fold=trial.fold,
            dev_scores=(70.0, score, 60.0),
            predictions=(Prediction(document="a", unit="a", truth=("sea",), predicted=("sea",)),),
            num_untested=0,
        )
        write_fine_tuned(folder, trial, read_labelled(trial.task), result, 64)
        artifact.write(folder / DownstreamTrial.FILE, result)
        return 0, ""
