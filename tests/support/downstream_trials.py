"""Stands in for the processes of the downstream command: each trial writes what a real one leaves, without training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.downstream import (
    MODEL,
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    Prediction,
    TrialCost,
)
from longmlm.config import parse, read
from longmlm.runtime.trials import TRIAL
from longmlm.scoring.compared import compared
from longmlm.settings.downstream import DownstreamConfig, DownstreamTrialConfig
from longmlm.training.run_folder import CHECKPOINTS
from longmlm.trials import downstream_running
from longmlm.trials.downstream_planned import TrialInputs
from longmlm.trials.downstream_running import DownstreamTrials

COST = TrialCost(
    train_tokens_per_second=1.0, train_seconds=1.0, documents_per_second=1.0, peak_memory_bytes=1, num_parameters=1
)


def score_of(trial: DownstreamTrialConfig) -> float:
    """Returns a development score that is best for a rate of 2e-5, and differs with seed and fold."""
    return 80 - abs(trial.learning_rate / 1e-5 - 2) + trial.seed / 100 - trial.fold / 10


class FakeFinetunes:
    """Fine-tunes in no time. `started` are the trials that were trained, in their order.

    `failures` returns the error of a trial that fails, or nothing; the trial that would start as number `stopped_at` is
    stopped by SIGTERM after its first checkpoint.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[DownstreamTrialConfig] = []
        self.resumed: list[str] = []
        self.failures: Callable[[DownstreamTrialConfig], str] = lambda _: ""
        self.stopped_at: int | None = None
        self.compared: list[list[DownstreamTrial]] = []
        monkeypatch.setattr("longmlm.runtime.trials.run_child", self.run_child)
        monkeypatch.setattr(downstream_running, "compared", self.compare)
        monkeypatch.setattr(downstream_running, "write_downstream", self.write_record)  # the charts take a second

    @property
    def names(self) -> list[str]:
        """The folders of the trials that were trained."""
        return [trial.folder.partition("/trials/")[2] for trial in self.started]

    def compare(
        self, task: ComparedTask, trials: Sequence[DownstreamTrial], failed: Mapping[str, str]
    ) -> DownstreamComparison:
        self.compared.append(list(trials))
        return compared(task, trials, failed)

    @staticmethod
    def write_record(comparison: DownstreamComparison, folder: Path, made_by: str) -> None:
        (folder / "made_by.toml").write_text(made_by, encoding="utf-8")
        artifact.write(folder / DownstreamComparison.FILE, comparison)

    def run_child(
        self, command: Sequence[str], _environment: Mapping[str, str], log: Path, **_answer: str
    ) -> tuple[int, str]:
        assert command[1:4] == ["-P", "-m", "longmlm.stages.finetune"]
        folder = Path(command[4])
        trial = read(DownstreamTrialConfig, [folder / TRIAL])
        assert trial.folder == str(folder)
        if (folder / CHECKPOINTS).is_dir():
            self.resumed.append(trial.folder)
        if len(self.started) == self.stopped_at:
            (folder / CHECKPOINTS).mkdir()
            return 143, "SIGTERM"
        self.started.append(trial)
        if reason := self.failures(trial):
            log.write_text(f"tokens\n{reason}\nend\n", encoding="utf-8")
            return 2, ""
        for name in (CHECKPOINTS, MODEL) if trial.values else ():
            (folder / name).mkdir(exist_ok=True)
        result = DownstreamTrial(
            arm=trial.arm_name,
            values=trial.values,
            seed=trial.seed,
            fold=trial.fold,
            settings_sha256=trial.settings_sha256,
            dev_scores=(70.0, score_of(trial), 60.0) if trial.values else (),
            predictions=(Prediction(document="a", num_tokens=3, labels=("sea",), predicted=("sea",)),),
            cost=COST,
        )
        artifact.write(folder / DownstreamTrial.FILE, result)
        return 0, ""


def settings(*arguments: str) -> DownstreamConfig:
    return parse(DownstreamConfig, arguments)


def inputs(config: DownstreamConfig, documents: str = "documents", model: str = "weights") -> TrialInputs:
    return TrialInputs(dict(config.arms), documents, dict.fromkeys(config.arms, model))


def trials_of(config: DownstreamConfig, given: TrialInputs | None = None) -> DownstreamTrials:
    """Returns the trials of a comparison, of which none has run."""
    task = ComparedTask(
        name="out",
        kind=config.task.kind,
        labels=("land", "sea"),
        is_multilabel=False,
        num_documents=2,
        num_set_aside=0,
        num_folds=config.task.num_folds,
        arms=config.arms,
        baseline=config.reference,
    )
    Path(config.output, "downstream").mkdir(parents=True, exist_ok=True)
    return DownstreamTrials(config, task, given or inputs(config))
