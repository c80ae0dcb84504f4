"""The finding of a comparison of arms in one sentence: which is best, how certainly, and what went wrong."""

from collections.abc import Collection
from dataclasses import replace

from longmlm.artifacts.downstream import ArmResult, DownstreamComparison, Score
from longmlm.errors import counted
from longmlm.reports.tables import percent, signed
from longmlm.settings.downstream import TaskKind


def finding(comparison: DownstreamComparison) -> str:
    """Returns in one sentence which arm is best, and whether its difference from the baseline excludes zero.

    If the baseline is the best arm, it is compared with the next one. Models that are not shown to be better than
    TF-IDF are named, and arms that learned nothing, and those with documents that their difference leaves out. Failed
    trials come first.
    """
    text = f"{failures(comparison)}; " if comparison.failed else ""
    unlearned = {arm.arm: _unlearned(arm, comparison.task.kind) for arm in comparison.arms}
    if all(unlearned.values()):
        return f"{text}{_nothing_learned(comparison, {*unlearned.values()})}{_unpaired_text(comparison)}"
    named = "".join(f"; {arm} {reason}: it learned nothing" for arm, reason in unlearned.items() if reason)
    return f"{text}{_best_text(comparison)}{named}{_tfidf_text(comparison)}{_unpaired_text(comparison)}"


def failures(comparison: DownstreamComparison) -> str:
    """Returns how many trials failed, and which arms have no result because of that."""
    missing = comparison.arms_without_result
    names = " and ".join([*filter(None, [", ".join(missing[:-1])]), *missing[-1:]])
    arms = f", no result of {names}" if missing else ""
    return f"{len(comparison.failed):,} of {counted(comparison.num_trials, 'trial')} failed{arms}"


def _unlearned(arm: ArmResult, kind: TaskKind) -> str:
    """Returns the sign that an arm learned nothing, as the predicate of a sentence; else an empty text."""
    if arm.constant is not None and kind == "similarity":
        return "predicts one score for all pairs"
    if arm.constant is not None:
        return f"predicts only {' and '.join(map(repr, arm.constant))}" if arm.constant else "predicts no label"
    return "finds no span" if kind == "labelling" and not arm.scores[0].mean else ""


def _nothing_learned(comparison: DownstreamComparison, reasons: Collection[str]) -> str:
    """Returns that no arm learned anything, the sign of it if all arms show the same, and what to change."""
    task = comparison.task
    arms = [task.arms[arm.arm] for arm in comparison.arms]
    prefix = "frozen_" if all(arm.frozen or not arm.model for arm in arms) else ""
    remedy = (
        f"; raise {prefix}num_epochs or try another {prefix}learning_rate" if any(arm.model for arm in arms) else ""
    )
    if task.kind == "labelling":
        return f"no arm found a span: nothing was learned{remedy}"
    every, same = "every arm" if len(arms) > 1 else comparison.arms[0].arm, len(reasons) == 1
    return (
        f"{every} {next(iter(reasons)) if same else 'predicts the same for all documents'}: nothing was learned{remedy}"
    )


def _best_text(comparison: DownstreamComparison) -> str:
    best, *others = comparison.arms
    baseline, metric = comparison.task.baseline, metric_of(comparison)
    score = best.scores[0]
    interval = f"{percent(score.low)} to {percent(score.high)}"
    result = f"{metric} {percent(score.mean)} %, 95 % interval {interval}"
    first = f"{best.arm} ranks first: {result}" if others else f"{best.arm}: {result}"
    if best.arm == baseline:
        rival = next((arm for arm in others if arm.differences), None)
        if rival is None:
            return f"{first}, no other arm to compare with"
        return _difference_text(rival, best, comparison)
    rival = next((arm for arm in others if arm.arm == baseline), None)
    if rival is None or not best.differences:
        return f"{first}; the baseline {baseline} has no result on the same documents"
    return _difference_text(best, rival, comparison)


def _difference_text(arm: ArmResult, baseline: ArmResult, comparison: DownstreamComparison) -> str:
    """Returns what the difference of an arm from the baseline says, the better one first."""
    metric, noun = metric_of(comparison), comparison.task.noun
    num_compared = sum(bool(one.differences) for one in comparison.arms)
    difference, better, worse = arm.differences[0], arm, baseline
    direction = sign(difference)
    if direction < 0:
        difference, better, worse = _negated(difference), baseline, arm
    gain = f"{points(difference.mean)} points, 95 % interval {points(difference.low)} to {points(difference.high)}"
    order = f"{arm.arm} minus {baseline.arm}"
    if difference.low is None:
        gain = f"{metric} {points(difference.mean)} points ({order})"
        return f"{gain}, without an interval: the {noun}s tested on are copies or one group"
    if direction == 0:
        return f"no difference found between {arm.arm} and {baseline.arm}: {metric} {gain} ({order})"
    numbers = " and ".join(f"{percent(one.scores[0].mean)} %" for one in (better, worse))
    corrected = f" (not corrected for {num_compared} comparisons)" if num_compared > 1 else ""
    return f"{better.arm} is better than {worse.arm}: {metric} {numbers}, {gain}{corrected}"


def _negated(score: Score) -> Score:
    mean, low, high = (None if value is None else -value for value in (score.mean, score.high, score.low))
    return replace(score, mean=mean, low=low, high=high)


def _tfidf_text(comparison: DownstreamComparison) -> str:
    """Returns which models are not shown to be better than the best arm without a model."""
    without = [arm.arm for arm in comparison.arms if not comparison.task.arms[arm.arm].model]
    models = [arm for arm in comparison.arms if comparison.task.arms[arm.arm].model]
    weak = [arm.arm for arm in models if arm.over_tfidf and arm.over_tfidf.low is not None and sign(arm.over_tfidf) < 1]
    best = f" ({without[0]})" if len(without) > 1 else ""
    return f"; not shown to be better than TF-IDF{best}: {', '.join(weak)}" if weak else ""


def _unpaired_text(comparison: DownstreamComparison) -> str:
    """Returns how many documents the difference of each arm leaves out."""
    counts = [f"{arm.arm} {arm.num_unpaired:,}" for arm in comparison.arms if arm.num_unpaired]
    baseline, noun = comparison.task.baseline, comparison.task.noun
    text = f"; left out of the difference from {baseline}, {noun}s that only one of the two arms predicted: "
    return text + ", ".join(counts) if counts else ""


def sign(score: Score) -> int:
    """Returns 1 or -1 if the interval lies above or below zero, else 0."""
    return ((score.low or 0.0) > 0) - ((score.high or 0.0) < 0)


def points(value: float | None) -> str:
    """Returns a difference with its sign, a dash where there is none."""
    return "–" if value is None else signed(f"{value:+.2f}")


def metric_of(comparison: DownstreamComparison) -> str:
    """Returns the name of the main metric."""
    return comparison.arms[0].scores[0].metric
