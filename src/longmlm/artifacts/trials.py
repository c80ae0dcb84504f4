"""Trials of a comparison: what each measured or why it failed, and the records with which a comparison resumes.

A trial is one run of one arm with one choice of settings and one seed. For example, two arms, two learning rates to
try and three seeds are 2 * 2 trials with the first seed, and 2 * 2 more for the better rate of each arm.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.evaluation import ViewName
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.settings.masking import HeldOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: its arm, the values tried for searched settings, and its evaluations, the first before training.

    `measured` is what the evaluate stage found; empty if the trial ended with pretrain. `seconds` is the time of all
    its stages over all attempts, start-up included, without packing rows. `base_positions` are those of a block; None
    in early versions.
    """

    arm: str
    seed: int
    values: dict[str, Any] = field(default_factory=dict)
    curve: tuple[EvaluationMetrics, ...]
    rows_sha256: str = ""
    base_positions: int | None = None
    held_out: HeldOut = field(default_factory=HeldOut)
    tokens_per_second: float | None = None
    training_seconds: float = 0.0
    seconds: float = 0.0
    measured: dict[ViewName, Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.curve:
            raise ValueError("curve must have an evaluation")

    @property
    def base_cut(self) -> float | None:
        """The base model's accuracy on rows cut to its length."""
        return self.curve[0].base_cut

    @property
    def before(self) -> Measured:
        """Accuracy before training."""
        return self.curve[0].held_out

    @property
    def after(self) -> Measured:
        """Accuracy after training."""
        return self.curve[-1].held_out

    def has_rows_of(self, other: "Trial") -> bool:
        """Returns whether both were evaluated on the same held-out rows with the same masks."""
        return (self.rows_sha256, self.held_out) == (other.rows_sha256, other.held_out)

    def tokens_to_recovery(self, control: Sequence["Trial"] = ()) -> int | None:
        """Returns the tokens at the first of two consecutive evaluations at or above base_cut; None if there is none.

        With control trials, what these have gained over the base model by then is added to base_cut, unless they lost.
        """
        reached = [
            line.base_cut is not None
            and accuracy_of(line.held_out) >= line.base_cut + max(0.0, mean_gain(control, line.tokens))
            for line in self.curve
        ]
        pairs = zip(self.curve, reached, reached[1:], strict=False)
        return next((line.tokens for line, now, then in pairs if now and then), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTrial:
    """A trial that did not finish, and the error in its log."""

    arm: str
    seed: int
    values: dict[str, Any] = field(default_factory=dict)
    reason: str
    seconds: float = 0.0

    @property
    def description(self) -> str:
        """The trial and its error in one line."""
        return f"{trial_name(self.arm, self.values, self.seed)} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord(Artifact):
    """record.json in a trial's folder: what it is made with, how long it took so far, and whether it has finished.

    `stages` has a hash of each stage's settings, as far as the result depends on them; the other hashes are those of
    the rows and of a base model in a folder, empty where they are not known. `attempt_started` is the time at which the
    attempt that is not over yet began, in seconds since 1970. `base_positions` are those of a trial.
    """

    FILE: ClassVar[str] = "record.json"

    stages: dict[str, str]
    rows_sha256: str = ""
    model_sha256: str = ""
    seconds: float = 0.0
    attempt_started: float | None = None
    is_finished: bool = False
    base_positions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord(Artifact):
    """budget.json: what was chosen after the probes, for the budget and the settings of the probes named by hash."""

    FILE: ClassVar[str] = "budget.json"

    budget: str
    probes_sha256: str
    arms: tuple[str, ...]
    num_steps: int
    rates: tuple[float, ...]


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """Returns a label per searched value: the last part of the setting's name, and the value."""
    return [f"{key.rpartition('.')[2]} {value}" for key, value in values.items()]


def values_in_words(values: Mapping[str, Any]) -> str:
    """Returns the labels of searched values in a cell of a table, a dash without any."""
    return ", ".join(labels_of(values)) or "–"


def trial_name(arm: str, values: Mapping[str, Any], seed: int, fold: int | None = None) -> str:
    """Returns a trial in words, such as "chunks, learning_rate 5e-05, seed 42, fold 0"."""
    return ", ".join([arm, *labels_of(values), f"seed {seed}", *([] if fold is None else [f"fold {fold}"])])


def accuracy_of(measured: Measured) -> float:
    """Returns the accuracy on whole rows in percent; NaN if no token was selected."""
    return math.nan if measured.whole.accuracy is None else measured.whole.accuracy


def mean_gain(trials: Sequence[Trial], tokens: int) -> float:
    """Returns the points that the trials have gained on average after `tokens`, linearly between evaluations."""
    return statistics.fmean(_gain(trial, tokens) for trial in trials) if trials else 0.0


def _gain(trial: Trial, tokens: int) -> float:
    points = [(line.tokens, accuracy_of(line.held_out)) for line in trial.curve]
    start = points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if tokens <= x1:
            return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0) - start
    return points[-1][1] - start
