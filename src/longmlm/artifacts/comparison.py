"""comparison.json: what every trial of a comparison measured, and what follows: the best settings, tokens to recovery.

A trial is one run of one arm with one choice of settings and one seed. For example, two arms, two learning rates to
try and three seeds are 2 * 2 trials with the first seed, and 2 * 2 more for the better rate of each arm.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from longmlm.artifacts.accuracy import Difference, Measured, paired_difference
from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.evaluation import ViewName
from longmlm.artifacts.metrics import EvaluationMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: its arm, the values tried for searched settings, and its evaluations, the first before training.

    `measured` is what the evaluate stage found; empty if the trial ended with pretrain. `seconds` is the time of all
    its stages, start-up included.
    """

    arm: str
    seed: int
    values: dict[str, Any] = field(default_factory=dict)
    curve: tuple[EvaluationMetrics, ...]
    tokens_per_second: float | None = None
    training_seconds: float = 0.0
    seconds: float = 0.0
    measured: dict[ViewName, Measured] = field(default_factory=dict)

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

    def tokens_to_recovery(self, control: Sequence["Trial"] = ()) -> int | None:
        """Returns the tokens at the first of two consecutive evaluations at or above base_cut; None if there is none.

        With control trials, what these have gained over the base model by then is added to base_cut.
        """
        reached = [
            accuracy_of(line.held_out) >= (line.base_cut or math.inf) + mean_gain(control, line.tokens)
            for line in self.curve
        ]
        pairs = zip(self.curve, reached, reached[1:], strict=False)
        return next((line.tokens for line, now, then in pairs if now and then), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm with the settings that served it best, and its trials with them, one per seed."""

    name: str
    values: dict[str, Any]
    trials: tuple[Trial, ...]

    @property
    def before(self) -> float:
        """Mean accuracy before training over the seeds."""
        return statistics.fmean(accuracy_of(trial.before) for trial in self.trials)

    @property
    def after(self) -> float:
        """Mean accuracy after training over the seeds."""
        return statistics.fmean(accuracy_of(trial.after) for trial in self.trials)

    def tokens_to_recovery(self, control: Sequence[Trial] = ()) -> float | None:
        """Returns the mean over the seeds; None unless every seed recovered."""
        tokens = [trial.tokens_to_recovery(control) for trial in self.trials]
        reached = [count for count in tokens if count is not None]
        return statistics.fmean(reached) if len(reached) == len(tokens) else None

    def better_than(self, other: "Arm") -> Difference | None:
        """Returns this arm's accuracy after training minus the other's, over the seeds that both have."""
        seeds = [trial.seed for trial in self.trials if any(trial.seed == its.seed for its in other.trials)]
        mine, others = ([t.after for seed in seeds for t in arm.trials if t.seed == seed] for arm in (self, other))
        return paired_difference(mine, others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Artifact):
    """All trials of a comparison, on rows of `row_length` tokens and the same held-out masks."""

    FILE: ClassVar[str] = "comparison.json"

    model: str
    row_length: int
    plain: str
    control: str | None = None
    trials: tuple[Trial, ...] = ()

    def arms(self) -> list[Arm]:
        """Returns every arm with the settings that served it best, the best arm first; the control arm is left out."""
        names = dict.fromkeys(trial.arm for trial in self.trials)
        return sorted((arm_of(self.trials, name) for name in names if name != self.control), key=rank)

    def control_trials(self) -> tuple[Trial, ...]:
        """Returns the control arm's trials with its best settings; none without such an arm."""
        has_control = any(trial.arm == self.control for trial in self.trials)
        return arm_of(self.trials, self.control).trials if self.control and has_control else ()


def worded(values: Mapping[str, Any]) -> list[str]:
    """Returns searched values in words: the last part of each setting's name, and its value."""
    return [f"{key.rpartition('.')[2]} {value}" for key, value in values.items()]


def accuracy_of(measured: Measured) -> float:
    """Returns the accuracy on whole rows in percent; NaN if no token was selected."""
    return math.nan if measured.whole.accuracy is None else measured.whole.accuracy


def mean_gain(trials: Sequence[Trial], tokens: int) -> float:
    """Returns the points that the trials have gained on average after `tokens`, linearly between evaluations."""
    return statistics.fmean(_gain(trial, tokens) for trial in trials) if trials else 0.0


def arm_of(trials: Sequence[Trial], name: str) -> Arm:
    """Returns an arm with the values of the trial that ranks first among those of its first seed."""
    own = [trial for trial in trials if trial.arm == name]
    searched = [Arm(name=name, values=trial.values, trials=(trial,)) for trial in own if trial.seed == own[0].seed]
    best = min(searched, key=rank)
    return Arm(name=name, values=best.values, trials=tuple(trial for trial in own if trial.values == best.values))


def rank(arm: Arm) -> tuple[float, float]:
    """Returns a key by which the better arm is smaller: fewer tokens to recovery, else higher accuracy at the end."""
    tokens = arm.tokens_to_recovery()
    return (math.inf if tokens is None else tokens, -arm.after)


def certainty(difference: Difference | None) -> float | None:
    """Returns the probability that the first of two models is the better one, if the error is normal.

    It covers the choice of held-out rows, and seeds as far as both models were trained with several.
    """
    if difference is None or not difference.standard_error:
        return None
    return statistics.NormalDist().cdf(difference.points / difference.standard_error)


def _gain(trial: Trial, tokens: int) -> float:
    points = [(line.tokens, accuracy_of(line.held_out)) for line in trial.curve]
    start = points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if tokens <= x1:
            return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0) - start
    return points[-1][1] - start
