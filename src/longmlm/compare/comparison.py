"""comparison.json: all trials of a comparison, and what follows: the order of the arms, differences, probabilities.

A trial is one run of one arm with one choice of settings and one seed. For example, two arms, two learning rates to
try and three seeds are 2 * 2 trials with the first seed, and 2 * 2 more for the better rate of each arm.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from longmlm.artifacts.accuracy import Difference, Measured, block_names, first_recovered, paired_difference
from longmlm.artifacts.artifact import Artifact
from longmlm.artifacts.evaluation import ViewName
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.artifacts.provenance import Distilled
from longmlm.experiments.experiment import FailedTrial, Trial, Values
from longmlm.settings.masking import HeldOut

MAX_FREEDOM = 1e4  # beyond this, Student's t is normal
NUM_INTERVALS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTrial(Trial):
    """A trial and its evaluations, the first before training.

    `measured` is what the evaluate stage found; empty if the trial ended with pretrain. `base_positions` are those of a
    block; None for a model that was not extended. Token counts in `curve` include the distillation.
    """

    curve: tuple[EvaluationMetrics, ...]
    rows_sha256: str = ""
    base_positions: int | None = None
    distilled: Distilled | None = None
    held_out: HeldOut = field(default_factory=HeldOut)
    measured: dict[ViewName, Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.curve:
            raise ValueError("curve must have an evaluation")

    @property
    def base_chunks(self) -> float | None:
        """The accuracy to recover: the base model's in chunks of its length."""
        return self.curve[0].base_chunks

    @property
    def before(self) -> Measured:
        """Accuracy before training."""
        return self.curve[0].held_out

    @property
    def after(self) -> Measured:
        """Accuracy after training."""
        return self.curve[-1].held_out

    def has_rows_of(self, other: "MeasuredTrial") -> bool:
        """Returns whether both were evaluated on the same held-out rows with the same masks."""
        return (self.rows_sha256, self.held_out) == (other.rows_sha256, other.held_out)

    def tokens_to_recovery(self, control: Sequence["MeasuredTrial"] = ()) -> int | None:
        """Returns the tokens at the evaluation at which it has recovered (`first_recovered`); None if it has not.

        With control trials, what these have gained over the base model by then is added to base_chunks, unless they
        lost.
        """
        gains = [
            gain and replace(gain, points=gain.points - max(0.0, mean_gain(control, line.tokens)))
            for line in self.curve
            for gain in [line.recovery]
        ]
        index = first_recovered(gains)
        return None if index is None else self.curve[index].tokens


def accuracy_of(measured: Measured) -> float:
    """Returns the accuracy on whole rows in percent; NaN if no token was selected."""
    return math.nan if measured.whole.accuracy is None else measured.whole.accuracy


def mean_gain(trials: Sequence[MeasuredTrial], tokens: int) -> float:
    """Returns the points that the trials have gained on average after `tokens`, linearly between evaluations."""
    return statistics.fmean(_gain(trial, tokens) for trial in trials) if trials else 0.0


def _gain(trial: MeasuredTrial, tokens: int) -> float:
    points = [(line.tokens, accuracy_of(line.held_out)) for line in trial.curve]
    start = points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if tokens <= x1:
            return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0) - start
    return points[-1][1] - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm with one choice of settings, and its trials with them, one per seed; `num_failed` others failed."""

    name: str
    values: Values
    trials: tuple[MeasuredTrial, ...]
    num_failed: int = 0

    @property
    def before(self) -> float:
        """Mean accuracy before training over the seeds."""
        return statistics.fmean(accuracy_of(trial.before) for trial in self.trials)

    @property
    def after(self) -> float:
        """Mean accuracy after training over the seeds."""
        return statistics.fmean(accuracy_of(trial.after) for trial in self.trials)

    @property
    def tokens(self) -> float:
        """Mean number of tokens trained on over the seeds."""
        return statistics.fmean(trial.curve[-1].tokens for trial in self.trials)

    @property
    def recovery(self) -> Difference | None:
        """Mean accuracy after training minus base_chunks; its error is that of one seed, since all have the same rows.

        None where base_chunks or its error is not known.
        """
        gains = [gain for trial in self.trials if (gain := trial.curve[-1].recovery)]
        if len(gains) < len(self.trials):
            return None
        points, errors = [gain.points for gain in gains], [gain.standard_error for gain in gains]
        return Difference(statistics.fmean(points), statistics.fmean(errors))

    def tokens_to_recovery(self, control: Sequence[MeasuredTrial] = ()) -> float | None:
        """Returns the mean over the seeds; None unless every seed recovered."""
        tokens = [trial.tokens_to_recovery(control) for trial in self.trials]
        reached = [count for count in tokens if count is not None]
        return statistics.fmean(reached) if len(reached) == len(tokens) else None

    def pairs_with(self, other: "Arm") -> list[tuple[MeasuredTrial, MeasuredTrial]]:
        """Returns the trials of both arms with the same seed, rows and held-out masks."""
        pairs = [(mine, its) for mine in self.trials for its in other.trials if mine.seed == its.seed]
        return [(mine, its) for mine, its in pairs if mine.has_rows_of(its)]

    def gain_over(self, other: "Arm") -> Difference | None:
        """Returns this arm's accuracy after training minus the other's, over the seeds that both have.

        The variance over held-out rows is that of `paired_difference`. With several seeds, the variance of the seeds'
        differences divided by their number is added to it: that of training.
        """
        gain = self._gain_on_rows(other)
        return gain and Difference(gain.points, math.hypot(gain.standard_error, self._training_error(other)))

    def probability_over(self, other: "Arm") -> float | None:
        """Returns the probability that this arm's accuracy after training is higher.

        The error over rows is taken as normal. That of training is known from a few seeds only, so the difference
        divided by its error follows Student's t, with the degrees of freedom of Welch and Satterthwaite. None with
        fewer than two common seeds, which say nothing about how much training varies.
        """
        gain, num_seeds = self._gain_on_rows(other), len(self.pairs_with(other))
        if gain is None or num_seeds == 1:
            return None
        training = self._training_error(other)
        if not (error := math.hypot(gain.standard_error, training)):
            return None
        freedom = (num_seeds - 1) * (error / training) ** 4 if training else math.inf
        return student_cdf(gain.points / error, freedom)

    def _gain_on_rows(self, other: "Arm") -> Difference | None:
        pairs = [(mine.after, its.after) for mine, its in self.pairs_with(other)]
        return paired_difference([mine for mine, _ in pairs], [its for _, its in pairs])

    def _training_error(self, other: "Arm") -> float:
        """Returns the standard error that is due to training, from the spread of the seeds; 0 with one seed."""
        pairs = self.pairs_with(other)
        each = [one.points for mine, its in pairs if (one := paired_difference([mine.after], [its.after]))]
        return math.sqrt(statistics.variance(each) / len(each)) if len(each) > 1 else 0.0


def student_cdf(value: float, freedom: float) -> float:
    """Returns the probability that Student's t with these degrees of freedom is at most `value`.

    With t = sqrt(freedom) * tan(x), the density of x is proportional to cos(x) ** (freedom - 1); Simpson's rule.
    """
    if freedom > MAX_FREEDOM:
        return statistics.NormalDist().cdf(value)
    end = math.atan(value / math.sqrt(freedom))
    heights = [math.cos(end * step / NUM_INTERVALS) ** (freedom - 1) for step in range(NUM_INTERVALS + 1)]
    area = end / NUM_INTERVALS / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]))
    return 0.5 + area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Artifact):
    """All trials of a comparison."""

    FILE: ClassVar[str] = "comparison.json"

    format: int = 4
    model: str
    row_length: int
    baseline: str
    control: str | None = None
    trials: tuple[MeasuredTrial, ...] = ()
    failed: tuple[FailedTrial, ...] = ()

    def arms(self) -> list[Arm]:
        """Returns every arm with the values that served it best, the best arm first; the control arm is left out."""
        names = [name for name in dict.fromkeys(trial.arm for trial in self.trials) if name != self.control]
        return sorted(map(self.arm, names), key=rank)

    def arm(self, name: str) -> Arm:
        """Returns an arm with the values whose trial ranks first among those of its first seed."""
        trials = [trial for trial in self.trials if trial.arm == name]
        alone = [Arm(name=name, values=trial.values, trials=(trial,)) for trial in trials]
        values = min((arm for arm in alone if arm.trials[0].seed == trials[0].seed), key=rank).values
        return Arm(
            name=name,
            values=values,
            trials=tuple(trial for trial in trials if trial.values == values),
            num_failed=sum((failed.arm, failed.values) == (name, values) for failed in self.failed),
        )

    def control_trials(self) -> tuple[MeasuredTrial, ...]:
        """Returns the control arm's trials with its best settings; none without such an arm."""
        has_control = any(trial.arm == self.control for trial in self.trials)
        return self.arm(self.control).trials if self.control and has_control else ()

    def baseline_arm(self) -> Arm | None:
        """Returns the baseline; None if it has no finished trial."""
        return next((arm for arm in self.arms() if arm.name == self.baseline), None)

    def block_names(self) -> list[str]:
        """Returns the positions of each block; its number where the length of a block is not known or not the same."""
        trials = [trial for arm in self.arms() for trial in arm.trials]
        names = [f"block {number + 1}" for number in range(max(len(trial.before.blocks) for trial in trials))]
        match {trial.base_positions for trial in trials}:
            case lengths if len(lengths) == 1 and (length := lengths.pop()) is not None:
                positions = block_names(length, self.row_length)
                return positions if len(positions) == len(names) else names
        return names


def rank(arm: Arm) -> tuple[bool, float, float]:
    """Returns a key by which the better arm is smaller: fewer tokens to recovery, else higher accuracy at the end.

    An arm of which a trial failed comes after all others.
    """
    tokens = arm.tokens_to_recovery()
    after = math.inf if math.isnan(arm.after) else -arm.after
    return (bool(arm.num_failed), math.inf if tokens is None else tokens, after)
