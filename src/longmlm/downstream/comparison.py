"""Compares the arms of the downstream command: scores, differences, and in one sentence which arm is best."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from longmlm.downstream.artifacts import (
    ArmResult,
    ComparedTask,
    DownstreamComparison,
    DownstreamTrial,
    LabelledSpan,
    Prediction,
)
from longmlm.downstream.scores import ratios_of
from longmlm.errors import ArtifactError, counted
from longmlm.experiments.experiment import FailedTrial, Values
from longmlm.experiments.intervals import Score, averaged, resampled, scores
from longmlm.experiments.intervals import Values as Metrics
from longmlm.reports.tables import percent, signed

Predictions = dict[int, dict[str, Prediction]]  # by seed and document


def chosen_values(trials: Sequence[DownstreamTrial]) -> Values:
    """Returns the values of an arm's best development score among its trials of the first seed and fold."""
    first = [trial for trial in trials if (trial.seed, trial.fold) == (trials[0].seed, trials[0].fold)]
    return max(first, key=lambda trial: trial.dev_score).values


def compared(
    task: ComparedTask, trials: Sequence[DownstreamTrial], failed: Sequence[FailedTrial]
) -> DownstreamComparison:
    """Returns the comparison of the arms that have a finished trial, by the main metric, the highest first.

    Of an arm's trials, those with its chosen values are compared, and of their documents those that all arms predicted
    with the same seed. Of equal arms, the baseline comes first.
    """
    by_arm = defaultdict[str, list[DownstreamTrial]](list)
    for trial in trials:
        by_arm[trial.arm].append(trial)
    values = {arm: chosen_values(of_arm) for arm, of_arm in by_arm.items()}
    final = [trial for trial in trials if trial.values == values[trial.arm]]
    predictions, num_left_out = _shared(final)
    names, metrics = _resampled(task, predictions)
    results = []
    for arm in by_arm:
        found = scores((*names, *task.labels), np.clip(averaged(metrics[arm]), 0.0, 100.0))
        kept = [one for of_seed in predictions[arm].values() for one in of_seed.values()]
        results.append(
            ArmResult(
                arm=arm,
                values=values[arm],
                seeds=tuple(predictions[arm]),
                num_documents=len({one.document for one in kept}),
                scores=tuple(found[: len(names)]),
                by_label=tuple(found[len(names) :]),
                differences=_differences(metrics, arm, task.baseline, names),
                over_tfidf=next(iter(_differences(metrics, arm, _best_tfidf(task, metrics), names)), None),
                constant=_constant(kept),
            )
        )
    results.sort(key=lambda result: (_rank(result), result.arm == task.baseline), reverse=True)
    untested = Counter[tuple[str, int]]()
    for trial in final:
        untested[trial.arm, trial.seed] += trial.num_untested
    return DownstreamComparison(
        task=task,
        arms=tuple(results),
        failed=tuple(failed),
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
    unlearned = {arm.arm: _unlearned(arm, comparison.task) for arm in comparison.arms}
    if all(unlearned.values()):
        return f"{text}{_nothing_learned(comparison, [*unlearned.values()])}"
    text += _best_text(comparison)
    text += "".join(f"; {arm} {reason}: it learned nothing" for arm, reason in unlearned.items() if reason)
    arms = comparison.task.arms
    tfidf = [arm.arm for arm in comparison.arms if not arms[arm.arm].model]
    over = {arm.arm: arm.over_tfidf for arm in comparison.arms if arms[arm.arm].model}
    if weak := [arm for arm, score in over.items() if score and score.low is not None and score.sign < 1]:
        text += f"; not shown to be better than TF-IDF{f' ({tfidf[0]})' if len(tfidf) > 1 else ''}: {', '.join(weak)}"
    if comparison.num_left_out:
        number = counted(comparison.num_left_out, "document")
        text += f"; {number} left out, for which an arm has no prediction with some seed"
    return text


def failures(comparison: DownstreamComparison) -> str:
    """Returns how many trials failed, and which arms have no result because of that."""
    missing = comparison.arms_without_result
    arms = f", no result of {' and '.join(missing)}" if missing else ""
    return f"{len(comparison.failed):,} of {counted(comparison.num_trials, 'trial')} failed{arms}"


def points(value: float | None) -> str:
    """Returns a difference with its sign, a dash where there is none."""
    return "–" if value is None else signed(f"{value:+.2f}")


def _shared(trials: Sequence[DownstreamTrial]) -> tuple[dict[str, Predictions], int]:
    """Returns the predictions of each arm that all arms have, and the number of documents left out for some seed.

    Raises ArtifactError if there are none.
    """
    every: dict[str, dict[tuple[int, str], Prediction]] = defaultdict(dict)
    for trial in trials:
        every[trial.arm] |= {(trial.seed, prediction.document): prediction for prediction in trial.predictions}
    shared = set.intersection(*map(set, every.values()))
    left_out = {document for of_arm in every.values() for _, document in of_arm.keys() - shared}
    if not shared:
        raise ArtifactError("the arms have no document in common: remove the arm whose trials failed, or fix it")
    kept: dict[str, Predictions] = {arm: defaultdict(dict) for arm in every}
    for arm, (seed, document) in ((arm, key) for arm in every for key in sorted(shared)):
        kept[arm][seed][document] = every[arm][seed, document]
    return {arm: dict(of_arm) for arm, of_arm in kept.items()}, len(left_out)


def _resampled(
    task: ComparedTask, predictions: dict[str, Predictions]
) -> tuple[tuple[str, ...], dict[str, list[Metrics]]]:
    """Returns the names of the metrics, and their values for each arm and seed, all with the same resamples."""
    every = [one for by_seed in predictions.values() for of_seed in by_seed.values() for one in of_seed.values()]
    units = dict(sorted({one.document: one.unit for one in every}.items()))
    ratios = {
        arm: [ratios_of(of_seed, [*units], task.labels, task.target) for of_seed in by_seed.values()]
        for arm, by_seed in predictions.items()
    }
    values = iter(resampled([one for of_arm in ratios.values() for one in of_arm], [*units.values()]))
    names = next(iter(ratios.values()))[0].names
    return names, {arm: [next(values) for _ in of_arm] for arm, of_arm in ratios.items()}


def _best_tfidf(task: ComparedTask, metrics: Mapping[str, Sequence[Metrics]]) -> str | None:
    """Returns the arm without a model that has the highest main metric."""
    means = {arm: statistics.fmean(np.nan_to_num(of_seed[0, 0]) for of_seed in metrics[arm]) for arm in metrics}
    return max((arm for arm in means if task.arms[arm].model is None), key=means.__getitem__, default=None)


def _differences(
    metrics: Mapping[str, Sequence[Metrics]], arm: str, other: str | None, names: Sequence[str]
) -> tuple[Score, ...]:
    """Returns by how much the arm's metrics are above the other's; nothing for the other itself or without it."""
    if other is None or other == arm or other not in metrics:
        return ()
    by_seed = [one - two for one, two in zip(metrics[arm], metrics[other], strict=True)]
    return tuple(scores(names, averaged(by_seed)[:, : len(names)]))


def _rank(result: ArmResult) -> float:
    mean = result.scores[0].mean
    return -math.inf if mean is None else round(mean, 9)  # equal but for rounding


def _constant(predictions: Sequence[Prediction]) -> tuple[str, ...] | None:
    """Returns the labels that all documents are predicted to have, unless they have these; of spans, only none."""
    truth = {frozenset(one.truth) for one in predictions}
    predicted = {frozenset(one.predicted) for one in predictions}
    if len(predicted) > 1 or predicted == truth:
        return None
    labels = [item for item in predicted.pop() if not isinstance(item, LabelledSpan)]
    return tuple(sorted(labels)) if labels or not any(one.predicted for one in predictions) else None


def _unlearned(arm: ArmResult, task: ComparedTask) -> str:
    """Returns the sign that an arm learned nothing, as the predicate of a sentence; else an empty text."""
    if arm.constant:
        return f"predicts only {' and '.join(map(repr, arm.constant))}"
    return "" if arm.constant is None else "finds no span" if task.target == "spans" else "predicts no label"


def _nothing_learned(comparison: DownstreamComparison, reasons: Sequence[str]) -> str:
    """Returns that no arm learned anything, the sign of it if all arms show the same, and what to change."""
    task = comparison.task
    models = [task.arms[arm.arm] for arm in comparison.arms if task.arms[arm.arm].model]
    prefix = "frozen_" if all(arm.frozen for arm in models) else ""
    remedy = f"; raise {prefix}num_epochs or try another {prefix}learning_rate" if models else ""
    every = "every arm" if len(comparison.arms) > 1 else comparison.arms[0].arm
    reason = reasons[0] if len({*reasons}) == 1 else "predicts the same for all documents"
    return f"{every} {reason}: nothing was learned{remedy}"


def _best_text(comparison: DownstreamComparison) -> str:
    best, *others = comparison.arms
    baseline, is_baseline = comparison.task.baseline, best.arm == comparison.task.baseline
    rival = next((arm for arm in others if (arm.differences if is_baseline else arm.arm == baseline)), None)
    if rival:
        return _difference_text(rival, best, comparison) if is_baseline else _difference_text(best, rival, comparison)
    mean, low, high = map(percent, best.scores[0].numbers)
    first = f"{best.arm}{' ranks first' if others else ''}: {comparison.metric} {mean} %, 95 % interval {low} to {high}"
    return first + (", no other arm to compare with" if is_baseline else f"; the baseline {baseline} has no result")


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
