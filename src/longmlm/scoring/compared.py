"""Compares the arms of the downstream command: the values chosen for each, its scores, differences and costs."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from longmlm.artifacts.downstream import (
    DEFAULT_LENGTH,
    ArmResult,
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    Prediction,
    Score,
    Searched,
    TrialCost,
)
from longmlm.errors import ArtifactError
from longmlm.scoring.bootstrap import Values, averaged, resampled, scores
from longmlm.scoring.scores import Group, Measure, main_score, metrics_of

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
    lengths = {arm: chosen[0].length for arm, chosen in final.items()}
    shortest = min((length for length in lengths.values() if length is not None), default=DEFAULT_LENGTH)
    length = lengths.get(task.baseline) or shortest
    predictions = _with_common_tokens({arm: _predictions(final[arm]) for arm in final}, task.baseline)
    measured = _Measured(task, length, predictions)
    for arm in final:
        for other in {arm, measured.baseline or arm, measured.tfidf or arm}:
            measured.add(arm, other)
    measured.resample()
    results = [_result(measured, arm, by_arm[arm], final[arm]) for arm in final]
    results.sort(key=lambda result: (_rank(result), result.arm == task.baseline), reverse=True)
    return DownstreamComparison(
        task=task, arms=tuple(results), failed={**failed}, num_trials=len(trials) + len(failed), length=length
    )


@dataclass(slots=True)
class _Measured:
    """The metrics of arms, each over the documents that it shares with another arm, or over all of its own."""

    task: ComparedTask
    length: int
    predictions: dict[str, Predictions]
    measures: dict[tuple[str, int, frozenset[str]], Measure] = field(default_factory=dict)
    values: dict[tuple[str, int, frozenset[str]], Values] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """The baseline, if a trial of it has finished."""
        return self.task.baseline if self.task.baseline in self.predictions else None

    @property
    def tfidf(self) -> str | None:
        """The best arm without a model of which a trial has finished."""
        names = [name for name in self.predictions if self.task.arms[name].model is None]
        return max(names, key=self.mean_score) if len(names) > 1 else next(iter(names), None)

    @property
    def documents(self) -> list[str]:
        """All documents that an arm has a prediction for."""
        return sorted({name for arm in self.predictions.values() for seed in arm.values() for name in seed})

    @property
    def units(self) -> list[str]:
        """The unit of each of the documents."""
        units: dict[str, str] = {}
        for prediction in (one for arm in self.predictions.values() for seed in arm.values() for one in seed.values()):
            units[prediction.document] = prediction.unit or prediction.document
        return [units[name] for name in self.documents]

    def mean_score(self, arm: str) -> float:
        """Returns the main metric of an arm over all of its documents, averaged over seeds."""
        task, by_seed = self.task, self.predictions[arm].values()
        return statistics.fmean(main_score([*of_seed.values()], task.kind, task.is_multilabel) for of_seed in by_seed)

    def shared(self, arm: str, other: str) -> dict[int, frozenset[str]]:
        """Returns the documents that both arms have a prediction for, by seed."""
        one, two = self.predictions[arm], self.predictions[other]
        both = {seed: frozenset(one[seed].keys() & two[seed].keys()) for seed in one if seed in two}
        return {seed: names for seed, names in both.items() if names}

    def add(self, arm: str, other: str) -> None:
        """Adds the metrics of both arms on what they share."""
        documents = self.documents
        for seed, names in self.shared(arm, other).items():
            for each in {arm, other}:
                if (each, seed, names) not in self.measures:
                    task, predictions = self.task, self.predictions[each][seed]
                    shared = {name: predictions[name] for name in names}
                    of_seed = metrics_of(shared, documents, task.labels, task.kind, task.is_multilabel, self.length)
                    self.measures[each, seed, names] = of_seed

    def resample(self) -> None:
        """Computes all metrics that were added."""
        values = resampled([*self.measures.values()], self.units)
        for of_seed in values:
            if math.isnan(of_seed[0, 0]):
                of_seed[:, 0] = 0.0  # as in `by_seed`: a seed that predicts the same for all pairs has no correlation
        self.values = dict(zip(self.measures, values, strict=True))

    def scores(self, arm: str, groups: Collection[Group]) -> tuple[Score, ...]:
        """Returns the arm's metrics of some groups over all of its documents."""
        return self._scores(arm, arm, self._averaged(arm, arm), groups)

    def differences(self, arm: str, other: str | None) -> tuple[Score, ...]:
        """Returns by how much the arm's metrics are above the other's; nothing where they share no document."""
        if not other or other == arm or not self.shared(arm, other):
            return ()
        shared = self.shared(arm, other).items()
        by_seed = [self.values[arm, seed, names] - self.values[other, seed, names] for seed, names in shared]
        return self._scores(arm, other, averaged(by_seed), ("score",))

    def by_seed(self, arm: str) -> tuple[float, ...]:
        """Returns the main metric of each seed."""
        return tuple(float(self.values[arm, seed, names][0, 0]) for seed, names in self.shared(arm, arm).items())

    def num_unpaired(self, arm: str, other: str) -> int:
        """Returns the number of documents of which only one of the arms has a prediction of some seed."""
        one, two = self.predictions[arm], self.predictions[other]
        by_seed = [one.get(seed, {}).keys() ^ two.get(seed, {}).keys() for seed in one.keys() | two.keys()]
        return len({name for names in by_seed for name in names})

    def _averaged(self, arm: str, other: str) -> Values:
        values = averaged([self.values[arm, seed, names] for seed, names in self.shared(arm, other).items()])
        return np.clip(values, -100.0 if self.task.kind == "similarity" else 0.0, 100.0)  # seeds vary symmetrically

    def _scores(self, arm: str, other: str, values: Values, groups: Collection[Group]) -> tuple[Score, ...]:
        metrics = next(self.measures[arm, seed, names].metrics for seed, names in self.shared(arm, other).items())
        chosen = [number for number, metric in enumerate(metrics) if metric.group in groups]
        return tuple(scores([metrics[number].name for number in chosen], values[:, chosen]))


def _with_common_tokens(predictions: dict[str, Predictions], baseline: str) -> dict[str, Predictions]:
    """Returns the predictions with spans at the tokens of the baseline's tokenizer, or else of the first arm's.

    So the arms' entities beyond a token are the same ones, although a tokenizer may cut a text into more tokens. Of a
    document of 1,000 tokens, or 1,200 of another tokenizer, a predicted span at token 600 of the other one is counted
    at token 500, unless it begins where a true span does: that one's token is known.
    """
    common: dict[str, Prediction] = {}
    by_arm = [predictions[arm] for arm in sorted(predictions, key=lambda arm: arm != baseline)]
    for prediction in (one for arm in by_arm for of_seed in arm.values() for one in of_seed.values()):
        common.setdefault(prediction.document, prediction)

    def moved(one: Prediction) -> Prediction:
        other = common[one.document]
        if one.num_tokens == other.num_tokens:
            return one
        known = {span.start: token for span, token in zip(other.spans, other.token_starts, strict=False)}
        spans = zip((*one.spans, *one.predicted_spans), one.token_starts, strict=True)
        scale = other.num_tokens / max(1, one.num_tokens)
        return replace(one, token_starts=tuple(known.get(span.start, round(token * scale)) for span, token in spans))

    return {
        arm: {seed: {name: moved(one) for name, one in of_seed.items()} for seed, of_seed in by_seed.items()}
        for arm, by_seed in predictions.items()
    }


def _rank(result: ArmResult) -> float:
    mean = result.scores[0].mean
    return -math.inf if mean is None else round(mean, 9)  # equal but for rounding


def _constant(predictions: Sequence[Prediction]) -> tuple[str, ...] | None:
    """Returns the labels that all documents are predicted to have, unless all have the same true labels.

    Empty for pairs of texts that are all predicted to have one score, unless they do.
    """
    scores = ({one.score for one in predictions}, {round(one.predicted_score or 0.0, 6) for one in predictions})
    if len(scores[1]) == 1 < len(scores[0]):
        return ()
    true, predicted = {frozenset(one.labels) for one in predictions}, {frozenset(one.predicted) for one in predictions}
    return tuple(sorted(*predicted)) if len(predicted) == 1 < len(true) else None


def _check_truth(trials: Sequence[DownstreamTrial]) -> None:
    """Raises ArtifactError if a document has other true labels, spans or another score in one trial than in another."""
    first: dict[str, tuple[str, Prediction]] = {}
    for trial in trials:
        for prediction in trial.predictions:
            arm, known = first.setdefault(prediction.document, (trial.arm, prediction))
            truth = ({*prediction.labels}, prediction.spans, prediction.score)
            if truth != ({*known.labels}, known.spans, known.score):
                raise ArtifactError(
                    f"trials of {arm} and {trial.arm} differ in the true labels, spans or score of document "
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
    return ArmResult(
        arm=arm,
        values=trials[0].values,
        searched=searched(all_trials),
        seeds=tuple(measured.predictions[arm]),
        num_documents=len({name for of_seed in measured.predictions[arm].values() for name in of_seed}),
        scores=measured.scores(arm, ("score",)),
        by_seed=measured.by_seed(arm),
        by_label=measured.scores(arm, ("label",)),
        by_position=measured.scores(arm, ("position",)),
        by_cut=measured.scores(arm, ("cut",)),
        differences=measured.differences(arm, measured.baseline),
        num_unpaired=measured.num_unpaired(arm, measured.baseline) if measured.baseline else 0,
        constant=_constant([one for of_seed in measured.predictions[arm].values() for one in of_seed.values()]),
        documents_per_seed=max(map(len, measured.predictions[arm].values())),
        over_tfidf=next(iter(measured.differences(arm, measured.tfidf)), None),
        cost=mean_cost([trial.cost for trial in trials]),
        explanations=trials[0].explanations,
    )


def mean_cost(costs: Sequence[TrialCost]) -> TrialCost:
    """Returns the mean over trials; of memory, the most that one took."""
    speeds = [cost.train_tokens_per_second for cost in costs if cost.train_tokens_per_second is not None]
    predicted = [cost.documents_per_second for cost in costs if cost.documents_per_second is not None]
    inference = [cost.inference_memory_bytes for cost in costs if cost.inference_memory_bytes is not None]
    return TrialCost(
        train_tokens_per_second=statistics.fmean(speeds) if speeds else None,
        train_seconds=statistics.fmean(cost.train_seconds for cost in costs),
        documents_per_second=statistics.fmean(predicted) if predicted else None,
        peak_memory_bytes=max(cost.peak_memory_bytes for cost in costs),
        num_parameters=costs[0].num_parameters,
        inference_memory_bytes=max(inference, default=None),
    )
