"""Compares the arms of the downstream command: the values chosen for each, its scores, differences and costs."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
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
from longmlm.downstream.scores import Ratios, ratios_of
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

    Of an arm's trials, those with its chosen values are compared, and of their documents those that all arms predicted
    with the same seed. Of equal arms, the baseline comes first. `failed` says why trials failed, by their names. Raises
    ArtifactError if two trials disagree on what is true of a document.
    """
    by_arm: dict[str, list[DownstreamTrial]] = {}
    for trial in trials:
        by_arm.setdefault(trial.arm, []).append(trial)
    final = {arm: [one for one in of_arm if one.values == chosen_values(of_arm)] for arm, of_arm in by_arm.items()}
    _check_truth([trial for chosen in final.values() for trial in chosen])
    predictions, num_left_out = _shared({arm: _predictions(chosen) for arm, chosen in final.items()})
    values, ratios = _resampled(task, predictions)
    first = {arm: statistics.fmean(np.nan_to_num(of_seed[0, 0]) for of_seed in values[arm]) for arm in final}
    tfidf = max((arm for arm in final if task.arms[arm].model is None), key=lambda arm: first[arm], default=None)
    results = []
    for arm, chosen in final.items():
        found = scores((*ratios.names, *ratios.labels), np.clip(averaged(values[arm]), 0.0, 100.0))
        kept = [one for of_seed in predictions[arm].values() for one in of_seed.values()]
        results.append(
            ArmResult(
                arm=arm,
                values=chosen[0].values,
                searched=searched(by_arm[arm]),
                seeds=tuple(predictions[arm]),
                num_documents=len({one.document for one in kept}),
                scores=tuple(found[: len(ratios.names)]),
                by_seed=tuple(float(np.nan_to_num(of_seed[0, 0])) for of_seed in values[arm]),
                by_label=tuple(found[len(ratios.names) :]),
                differences=_differences(values, arm, task.baseline, ratios.names),
                over_tfidf=next(iter(_differences(values, arm, tfidf, ratios.names)), None),
                constant=_constant(kept),
                cost=_mean_cost([trial.cost for trial in chosen]),
            )
        )
    results.sort(key=lambda result: (_rank(result), result.arm == task.baseline), reverse=True)
    untested = Counter(
        (trial.arm, trial.seed) for chosen in final.values() for trial in chosen for _ in range(trial.num_untested)
    )
    return DownstreamComparison(
        task=task,
        arms=tuple(results),
        failed={**failed},
        num_trials=len(trials) + len(failed),
        num_untested=max(untested.values(), default=0),
        num_left_out=num_left_out,
    )


def _shared(predictions: dict[str, Predictions]) -> tuple[dict[str, Predictions], int]:
    """Returns the predictions that all arms have, and the number of documents left out for some seed.

    Raises ArtifactError if there are none.
    """
    seeds = [
        seed for seed in next(iter(predictions.values())) if all(seed in by_seed for by_seed in predictions.values())
    ]
    names = {seed: set.intersection(*({*by_seed[seed]} for by_seed in predictions.values())) for seed in seeds}
    names = {seed: shared for seed, shared in names.items() if shared}
    every = {(seed, name) for by_seed in predictions.values() for seed, of_seed in by_seed.items() for name in of_seed}
    left_out = {name for seed, name in every if name not in names.get(seed, ())}
    if not names:
        raise ArtifactError("the arms have no document in common: remove the arm whose trials failed, or fix it")
    kept = {
        arm: {seed: {name: by_seed[seed][name] for name in sorted(shared)} for seed, shared in names.items()}
        for arm, by_seed in predictions.items()
    }
    return kept, len(left_out)


def _resampled(task: ComparedTask, predictions: dict[str, Predictions]) -> tuple[dict[str, list[Values]], Ratios]:
    """Returns the metrics of each arm and seed, all with the same resamples of documents, and what they are."""
    every = [one for by_seed in predictions.values() for of_seed in by_seed.values() for one in of_seed.values()]
    units = dict(sorted({one.document: one.unit for one in every}.items()))
    ratios = {
        (arm, seed): ratios_of(of_seed, [*units], task.labels, task.kind, task.is_multilabel)
        for arm, by_seed in predictions.items()
        for seed, of_seed in by_seed.items()
    }
    values = dict(zip(ratios, resampled([*ratios.values()], [*units.values()]), strict=True))
    by_arm = {arm: [values[arm, seed] for seed in by_seed] for arm, by_seed in predictions.items()}
    return by_arm, next(iter(ratios.values()))


def _differences(
    values: Mapping[str, Sequence[Values]], arm: str, other: str | None, names: Sequence[str]
) -> tuple[Score, ...]:
    """Returns by how much the arm's metrics are above the other's; nothing for the other itself or without it."""
    if other is None or other == arm or other not in values:
        return ()
    by_seed = [one - two for one, two in zip(values[arm], values[other], strict=True)]
    return tuple(scores(names, averaged(by_seed)[:, : len(names)]))


def _mean_cost(costs: Sequence[TrialCost]) -> TrialCost:
    """Returns the mean over trials; of memory, the most that one took."""
    return TrialCost(
        train_seconds=statistics.fmean(cost.train_seconds for cost in costs),
        documents_per_second=statistics.fmean(cost.documents_per_second for cost in costs),
        peak_memory_bytes=max(cost.peak_memory_bytes for cost in costs),
        num_parameters=costs[0].num_parameters,
    )


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
