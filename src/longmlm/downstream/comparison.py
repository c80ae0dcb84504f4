"""Compares the arms of the downstream command: the values chosen for each, its scores, differences and costs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from longmlm.downstream.artifacts import (
    ArmResult,
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    Prediction,
    Score,
    Searched,
    TrialCost,
)
from longmlm.downstream.bootstrap import Values, averaged, resampled, scores
from longmlm.downstream.scores import Ratios, main_score, ratios_of
from longmlm.errors import ArtifactError

Predictions = dict[int, dict[str, Prediction]]  # by seed and document


def chosen_values(trials: Sequence[DownstreamTrial]) -> dict[str, Any]:
    """Returns the values of an arm's best development score among its trials of the first seed and fold."""
    return max(searched(trials), key=lambda one: one.dev_score).values


def searched(trials: Sequence[DownstreamTrial]) -> tuple[Searched, ...]:
    """Returns what was tried with the first seed and fold, in its order."""
    first = [trial for trial in trials if (trial.seed, trial.fold) == (trials[0].seed, trials[0].fold)]
    return tuple(Searched(values=trial.values, dev_score=trial.dev_score) for trial in first)


def compared(task: ComparedTask, trials: Sequence[DownstreamTrial], failed: Mapping[str, str]) -> DownstreamComparison:
    """Returns the comparison of the arms that have a finished trial, by the main metric, the highest first.

    Of equal arms, the baseline comes first. Of an arm's trials, those with its chosen values are compared. `failed`
    says why trials failed, by their names.
    Raises ArtifactError if two trials disagree on what is true of a document.
    """
    by_arm: dict[str, list[DownstreamTrial]] = {}
    for trial in trials:
        by_arm.setdefault(trial.arm, []).append(trial)
    final = {
        arm: [trial for trial in of_arm if trial.values == chosen_values(of_arm)] for arm, of_arm in by_arm.items()
    }
    _check_truth([trial for chosen in final.values() for trial in chosen])
    measured = _Measured(task, {arm: _predictions(final[arm]) for arm in final})
    for arm in final:
        for other in {arm, measured.baseline or arm, measured.tfidf or arm}:
            measured.add(arm, other)
    measured.resample()
    results = [_result(measured, arm, by_arm[arm], final[arm]) for arm in final]
    results.sort(key=lambda result: (_rank(result), result.arm == task.baseline), reverse=True)
    untested = [
        sum(trial.num_untested for trial in chosen if trial.seed == seed)
        for chosen in final.values()
        for seed in {trial.seed for trial in chosen}
    ]
    return DownstreamComparison(
        task=task,
        arms=tuple(results),
        failed={**failed},
        num_trials=len(trials) + len(failed),
        num_untested=max(untested),
    )


@dataclass
class _Measured:
    """The metrics of arms, each over the documents that it shares with another arm, or over all of its own."""

    task: ComparedTask
    predictions: dict[str, Predictions]
    ratios: dict[tuple[str, int, frozenset[str]], Ratios] = field(default_factory=dict)
    values: dict[tuple[str, int, frozenset[str]], Values] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """The baseline, if a trial of it has finished."""
        return self.task.baseline if self.task.baseline in self.predictions else None

    @cached_property
    def tfidf(self) -> str | None:
        """The best arm without a model of which a trial has finished."""
        names = [name for name in self.predictions if self.task.arms[name].model is None]
        return max(names, key=self._mean_score) if len(names) > 1 else next(iter(names), None)

    @cached_property
    def units(self) -> dict[str, str]:
        """The unit of each document that an arm has a prediction for."""
        by_arm = self.predictions.values()
        units = {one.document: one.unit for arm in by_arm for of_seed in arm.values() for one in of_seed.values()}
        return dict(sorted(units.items()))

    def shared(self, arm: str, other: str) -> dict[int, frozenset[str]]:
        """Returns the documents that both arms have a prediction for, by seed."""
        one, two = self.predictions[arm], self.predictions[other]
        both = {seed: frozenset(one[seed].keys() & two[seed].keys()) for seed in one if seed in two}
        return {seed: names for seed, names in both.items() if names}

    def add(self, arm: str, other: str) -> None:
        """Adds the metrics of both arms on what they share."""
        task = self.task
        for seed, names in self.shared(arm, other).items():
            for each in {arm, other}:
                if (each, seed, names) not in self.ratios:
                    shared = {name: self.predictions[each][seed][name] for name in names}
                    of_seed = ratios_of(shared, [*self.units], task.labels, task.kind, task.is_multilabel)
                    self.ratios[each, seed, names] = of_seed

    def resample(self) -> None:
        """Computes all metrics that were added."""
        values = resampled([*self.ratios.values()], [*self.units.values()])
        self.values = dict(zip(self.ratios, values, strict=True))

    def scores(self, arm: str) -> tuple[tuple[Score, ...], tuple[Score, ...]]:
        """Returns the arm's metrics over all of its documents, and the F1 of each label."""
        values = averaged([self.values[arm, seed, names] for seed, names in self.shared(arm, arm).items()])
        ratios = next(of_arm for (name, *_), of_arm in self.ratios.items() if name == arm)
        found = scores((*ratios.names, *ratios.labels), np.clip(values, 0.0, 100.0))  # seeds vary symmetrically
        return tuple(found[: len(ratios.names)]), tuple(found[len(ratios.names) :])

    def differences(self, arm: str, other: str | None) -> tuple[Score, ...]:
        """Returns by how much the arm's metrics are above the other's; nothing where they share no document."""
        if not other or other == arm or not (shared := self.shared(arm, other)):
            return ()
        by_seed = [self.values[arm, seed, names] - self.values[other, seed, names] for seed, names in shared.items()]
        names = next(iter(self.ratios.values())).names
        return tuple(scores(names, averaged(by_seed)[:, : len(names)]))

    def by_seed(self, arm: str) -> tuple[float, ...]:
        """Returns the main metric of each seed."""
        return tuple(float(self.values[arm, seed, names][0, 0]) for seed, names in self.shared(arm, arm).items())

    def num_unpaired(self, arm: str, other: str) -> int:
        """Returns the number of documents of which only one of the arms has a prediction of some seed."""
        one, two = self.predictions[arm], self.predictions[other]
        by_seed = [one.get(seed, {}).keys() ^ two.get(seed, {}).keys() for seed in one.keys() | two.keys()]
        return len({name for names in by_seed for name in names})

    def _mean_score(self, arm: str) -> float:
        task, by_seed = self.task, self.predictions[arm].values()
        return statistics.fmean(main_score([*of_seed.values()], task.kind, task.is_multilabel) for of_seed in by_seed)


def _rank(result: ArmResult) -> float:
    mean = result.scores[0].mean
    return -math.inf if mean is None else round(mean, 9)  # equal but for rounding


def _constant(predictions: Sequence[Prediction]) -> tuple[str, ...] | None:
    """Returns the labels that all documents are predicted to have, unless all have the same true labels."""
    true, predicted = {frozenset(one.labels) for one in predictions}, {frozenset(one.predicted) for one in predictions}
    return tuple(sorted(*predicted)) if len(predicted) == 1 < len(true) else None


def _check_truth(trials: Sequence[DownstreamTrial]) -> None:
    """Raises ArtifactError if a document has other true labels or spans in one trial than in another."""
    first: dict[str, tuple[str, Prediction]] = {}
    for trial in trials:
        for prediction in trial.predictions:
            arm, known = first.setdefault(prediction.document, (trial.arm, prediction))
            if ({*prediction.labels}, prediction.spans) != ({*known.labels}, known.spans):
                raise ArtifactError(
                    f"trials of {arm} and {trial.arm} differ in the true labels or spans of document "
                    f"{prediction.document!r}: name another output, or move one of the two trials away"
                )


def _predictions(trials: Sequence[DownstreamTrial]) -> Predictions:
    predictions: Predictions = {}
    for trial in trials:
        of_seed = predictions.setdefault(trial.seed, {})
        of_seed.update({prediction.document: prediction for prediction in trial.predictions})
    return predictions


def _result(
    measured: _Measured, arm: str, all_trials: Sequence[DownstreamTrial], trials: Sequence[DownstreamTrial]
) -> ArmResult:
    """Returns what an arm reached with its chosen values; `all_trials` are those of the search too."""
    predictions = [one for of_seed in measured.predictions[arm].values() for one in of_seed.values()]
    of_all, of_labels = measured.scores(arm)
    return ArmResult(
        arm=arm,
        values=trials[0].values,
        searched=searched(all_trials),
        seeds=tuple(measured.predictions[arm]),
        num_documents=len({one.document for one in predictions}),
        scores=of_all,
        by_seed=measured.by_seed(arm),
        by_label=of_labels,
        differences=measured.differences(arm, measured.baseline),
        num_unpaired=measured.num_unpaired(arm, measured.baseline) if measured.baseline else 0,
        over_tfidf=next(iter(measured.differences(arm, measured.tfidf)), None),
        constant=_constant(predictions),
        cost=TrialCost(
            train_seconds=statistics.fmean(trial.cost.train_seconds for trial in trials),
            documents_per_second=statistics.fmean(trial.cost.documents_per_second for trial in trials),
            peak_memory_bytes=max(trial.cost.peak_memory_bytes for trial in trials),
            num_parameters=trials[0].cost.num_parameters,
        ),
    )
