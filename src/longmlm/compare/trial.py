"""Trials of a comparison: what each measured, or why it failed.

A trial is one run of one arm with one choice of settings and one seed. For example, two arms, two learning rates to
try and three seeds are 2 * 2 trials with the first seed, and 2 * 2 more for the better rate of each arm.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.evaluation import ViewName
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.runtime.trials import trial_name
from longmlm.settings.masking import HeldOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: its arm, the values tried for searched settings, and its evaluations, the first before training.

    `measured` is what the evaluate stage found; empty if the trial ended with pretrain. `base_positions` are those of a
    block; None for a model that was not extended.
    """

    arm: str
    seed: int
    values: dict[str, Any] = field(default_factory=dict)
    curve: tuple[EvaluationMetrics, ...]
    rows_sha256: str = ""
    base_positions: int | None = None
    held_out: HeldOut = field(default_factory=HeldOut)
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

    @property
    def description(self) -> str:
        """The trial and its error in one line."""
        return f"{trial_name(self.arm, self.values, self.seed)} failed: {self.reason}"


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
