"""Compares the arms of the downstream command: scores, differences, and in one sentence which arm is best."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from longmlm.downstream.artifacts import (
    ArmResult,
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    Prediction,
    Score,
)
from longmlm.downstream.scores import Ratios, Values, averaged, ratios_of, resampled, scores
from longmlm.errors import ArtifactError, counted
from longmlm.reports.tables import percent, signed

Predictions = dict[int, dict[str, Prediction]]  # by seed and document


def chosen_values(trials: Sequence[DownstreamTrial]) -> dict[str, Any]:
    """Returns the values of an arm's best development score among its trials of the first seed and fold."""
    first = [trial for trial in trials if (trial.seed, trial.fold) == (trials[0].seed, trials[0].fold)]
    return max(first, key=lambda trial: trial.dev_score).values


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
                seeds=tuple(predictions[arm]),
                num_documents=len({one.document for one in kept}),
                scores=tuple(found[: len(ratios.names)]),
                by_label=tuple(found[len(ratios.names) :]),
                differences=_differences(values, arm, task.baseline, ratios.names),
                over_tfidf=next(iter(_differences(values, arm, tfidf, ratios.names)), None),
                constant=_constant(kept),
            )
        )
    results.sort(key=lambda result: (_rank(result), result.arm == task.baseline), reverse=True)
    untested = Counter[tuple[str, int]]()
    for trial in (trial for chosen in final.values() for trial in chosen):
        untested[trial.arm, trial.seed] += trial.num_untested
    return DownstreamComparison(
        task=task,
        arms=tuple(results),
        failed={**failed},
        num_trials=len(trials) + len(failed),
        num_untested=max(untested.values(), default=0),
        num_left_out=num_left_out,
    )


def finding(comparison: DownstreamComparison) -> str:
    """Returns in one sentence which arm is best, and whether its difference from the baseline excludes zero.

    If the baseline is the best arm, it is compared with the next one. Models that are not shown to be better than
    TF-IDF are named, and arms that learned nothing. Failed trials come first.
    """
    text = f"{failures(comparison)}; " if comparison.failed else ""
    unlearned = {arm.arm: _unlearned(arm) for arm in comparison.arms}
    if all(unlearned.values()):
        return f"{text}{_nothing_learned(comparison, {*unlearned.values()})}"
    named = "".join(f"; {arm} {reason}: it learned nothing" for arm, reason in unlearned.items() if reason)
    return f"{text}{_best_text(comparison)}{named}{_tfidf_text(comparison)}{_left_out(comparison)}"


def failures(comparison: DownstreamComparison) -> str:
    """Returns how many trials failed, and which arms have no result because of that."""
    missing = comparison.arms_without_result
    arms = f", no result of {' and '.join(missing)}" if missing else ""
    return f"{len(comparison.failed):,} of {counted(comparison.num_trials, 'trial')} failed{arms}"


def points(value: float | None) -> str:
    """Returns a difference with its sign, a dash where there is none."""
    return "–" if value is None else signed(f"{value:+.2f}")


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


def _unlearned(arm: ArmResult) -> str:
    """Returns the sign that an arm learned nothing, as the predicate of a sentence; else an empty text."""
    if arm.constant is not None:
        return f"predicts only {' and '.join(map(repr, arm.constant))}" if arm.constant else "predicts no label"
    return "finds no span" if arm.scores[0].metric == "entity F1" and not arm.scores[0].mean else ""


def _nothing_learned(comparison: DownstreamComparison, reasons: Collection[str]) -> str:
    """Returns that no arm learned anything, the sign of it if all arms show the same, and what to change."""
    task = comparison.task
    models = [task.arms[arm.arm] for arm in comparison.arms if task.arms[arm.arm].model]
    prefix = "frozen_" if all(arm.frozen for arm in models) else ""
    remedy = f"; raise {prefix}num_epochs or try another {prefix}learning_rate" if models else ""
    every = "every arm" if len(comparison.arms) > 1 else comparison.arms[0].arm
    reason = next(iter(reasons)) if len(reasons) == 1 else "predicts the same for all documents"
    return f"{every} {reason}: nothing was learned{remedy}"


def _best_text(comparison: DownstreamComparison) -> str:
    best, *others = comparison.arms
    baseline, is_baseline = comparison.task.baseline, best.arm == comparison.task.baseline
    rival = next((arm for arm in others if (arm.differences if is_baseline else arm.arm == baseline)), None)
    if rival:
        return _difference_text(rival, best, comparison) if is_baseline else _difference_text(best, rival, comparison)
    mean, low, high = map(percent, best.scores[0].numbers)
    first = f"{best.arm}{' ranks first' if others else ''}: {comparison.metric} {mean} %, 95 % interval {low} to {high}"
    why = ", no other arm to compare with" if is_baseline else f"; the baseline {baseline} has no result"
    return first + why


def _difference_text(arm: ArmResult, baseline: ArmResult, comparison: DownstreamComparison) -> str:
    """Returns what the difference of an arm from the baseline says, the better one first."""
    metric, difference, better, worse = comparison.metric, arm.differences[0], arm, baseline
    mean, low, high = difference.numbers
    order = f"({arm.arm} minus {baseline.arm})"
    if mean is None or low is None or high is None:
        reason = "the documents tested on are copies or one group"
        return f"{metric} {points(mean)} points {order}, without an interval: {reason}"
    if difference.sign < 0:
        mean, low, high, better, worse = -mean, -high, -low, baseline, arm
    gain = f"{points(mean)} points, 95 % interval {points(low)} to {points(high)}"
    if difference.sign == 0:
        return f"no difference found between {arm.arm} and {baseline.arm}: {metric} {gain} {order}"
    numbers = " and ".join(f"{percent(one.scores[0].mean)} %" for one in (better, worse))
    many = comparison.num_compared
    corrected = f" (not corrected for {many} comparisons)" if many > 1 else ""
    return f"{better.arm} is better than {worse.arm}: {metric} {numbers}, {gain}{corrected}"


def _tfidf_text(comparison: DownstreamComparison) -> str:
    """Returns which models are not shown to be better than the best arm without a model."""
    arms = comparison.task.arms
    without = [arm.arm for arm in comparison.arms if not arms[arm.arm].model]
    over = {arm.arm: arm.over_tfidf for arm in comparison.arms if arms[arm.arm].model}
    weak = [arm for arm, score in over.items() if score and score.low is not None and score.sign < 1]
    best = f" ({without[0]})" if len(without) > 1 else ""
    return f"; not shown to be better than TF-IDF{best}: {', '.join(weak)}" if weak else ""


def _left_out(comparison: DownstreamComparison) -> str:
    number = counted(comparison.num_left_out, "document")
    return f"; {number} left out, for which an arm has no prediction with some seed" if comparison.num_left_out else ""
