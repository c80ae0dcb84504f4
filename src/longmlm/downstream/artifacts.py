"""trial.json and downstream.json: what an arm predicted for each test document, and what that says about the arms."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from longmlm.artifacts.artifact import Artifact
from longmlm.downstream.settings import Arm
from longmlm.experiments.experiment import FailedTrial, Values
from longmlm.experiments.intervals import Score

Target = Literal["label", "labels", "spans"]  # what is predicted: one label, any number of them, or labelled spans


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """A labelled part of a text, text[start:end]."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A test document: its true and its predicted labels, or spans.

    `probabilities` are those of all labels of the task, in their order. Documents with the same text or group have the
    same `unit`, the name of one of them.
    """

    document: str
    unit: str
    truth: tuple[str | LabelledSpan, ...] = ()
    predicted: tuple[str | LabelledSpan, ...] = ()
    probabilities: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamTrial(Artifact):
    """trial.json: one training of an arm, with one seed on one fold.

    `dev_scores` holds the development score after each epoch, in percent; the model of the best one is tested.
    `num_untested` documents of the fold have a label that no training document has.
    """

    FILE: ClassVar[str] = "trial.json"

    format: int = 3
    arm: str
    values: dict[str, Any]
    seed: int
    fold: int | None = None
    dev_scores: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    num_untested: int

    @property
    def dev_score(self) -> float:
        """The best development score, in percent."""
        return max(self.dev_scores, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """An arm with the values chosen for it, its metrics, and its differences from the baseline arm.

    The first score is the task's main metric; `by_label` has the F1 of each label. `over_tfidf` is the difference in
    the main metric from the best arm without a model. `constant` are the labels of every prediction, if they are always
    the same although the true ones are not.
    """

    arm: str
    values: Values
    seeds: tuple[int, ...]
    num_documents: int
    scores: tuple[Score, ...]
    by_label: tuple[Score, ...] = ()
    differences: tuple[Score, ...] = ()
    over_tfidf: Score | None = None
    constant: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTask:
    """What was compared: the task, its documents, and the arms' settings; `num_folds` is None without cross-validation.

    `num_documents` counts all documents, `num_set_aside` the records that are none.
    """

    name: str
    target: Target
    labels: tuple[str, ...]
    num_documents: int
    num_set_aside: int
    num_folds: int | None
    arms: dict[str, Arm]
    baseline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamComparison(Artifact):
    """downstream.json: the arms of a task, the best first, and the trials that failed.

    `num_trials` counts finished and failed trials. `num_untested` is the largest number of documents that a seed does
    not test, since no training document has all of their labels; `num_left_out` documents lack the prediction of an arm
    with some seed, since a trial failed or is still to run.
    """

    FILE: ClassVar[str] = "downstream.json"

    format: int = 3
    task: ComparedTask
    arms: tuple[ArmResult, ...]
    failed: tuple[FailedTrial, ...] = ()
    num_trials: int = 0
    num_untested: int = 0
    num_left_out: int = 0

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        return self.arms[0].scores[0].metric

    @property
    def num_compared(self) -> int:
        """How many arms are compared with the baseline."""
        return sum(bool(arm.differences) for arm in self.arms)

    @property
    def arms_without_result(self) -> list[str]:
        """The arms of which a trial has failed and none has finished."""
        failed = {trial.arm for trial in self.failed}.difference(arm.arm for arm in self.arms)
        return [arm for arm in self.task.arms if arm in failed]
