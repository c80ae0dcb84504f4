"""The report of the downstream command: which arm is best, by how much and how certainly, and a page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.downstream.artifacts import ArmResult, DownstreamComparison, Score
from longmlm.errors import counted
from longmlm.reports.charts import Chart, Series
from longmlm.reports.pages import Head, Section, page, write_page
from longmlm.reports.tables import Table, percent, signed
from longmlm.runtime.trials import values_in_words

BOUNDS = ("95 % low", "95 % high")


def write_downstream(comparison: DownstreamComparison, folder: Path, made_by: str) -> None:
    """Writes downstream.json and the page; `made_by` is the command with its settings."""
    write_page(downstream_page(comparison, made_by), folder / PAGE_FILE)
    artifact.write(folder / DownstreamComparison.FILE, comparison)


def downstream_page(comparison: DownstreamComparison, made_by: str) -> str:
    """Returns the page about a comparison of arms."""
    task, metric, arms = comparison.task, comparison.metric, comparison.arms
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    drawn = "of the documents and of the seeds" if len(seeds) > 1 else "of the documents, for one seed"
    num_compared = sum(bool(arm.differences) for arm in arms)
    corrected = f" Not corrected for {num_compared} comparisons." if num_compared > 1 else ""
    by_label = {arm.arm: {score.metric: score.mean for score in arm.by_label} for arm in arms}
    by_seed = {arm.arm: dict(zip(map(str, arm.seeds), arm.by_seed, strict=True)) for arm in arms}
    sections = [
        Section(
            "Arms",
            f"By {metric}, averaged over seeds. Low and high: 95 % interval of 2,000 bootstrap resamples {drawn}."
            f" The difference is that from the baseline, {task.baseline}.",
            arms_table(comparison),
        ),
        Section(f"{_capital(metric)} of each arm", "", _chart(comparison)),
        Section(
            f"Differences from {task.baseline}",
            "In percentage points, paired: both arms on the same documents and seeds. Where the interval includes "
            f"zero, no difference was found.{corrected}",
            differences_table(comparison),
        ),
        Section("Cost", "Means over trials; memory is the most that a trial took.", _cost_table(comparison)),
        Section("By label", "F1 in percent.", _values_table(task.labels, by_label)),
        Section("By seed", f"{_capital(metric)} in percent.", _values_table([*map(str, seeds)], by_seed)),
        Section("Settings", "Values were chosen by the development score.", _settings_table(comparison)),
        Section("Search", "First seed and fold; best development score over epochs.", _search_table(comparison)),
        Section(
            "Failed trials",
            "The same command tries them again.",
            Table(["trial", "error"], [*comparison.failed.items()]),
        ),
        Section("Documents", "", _facts(comparison, seeds)),
    ]
    sections = [one for one in sections if not (isinstance(one.content, Table) and not one.content.lines)]
    best = arms[0].differences
    is_good = False if comparison.failed else True if best and best[0].sign > 0 else None
    folds = f", cross-validation with {counted(task.num_folds, 'fold')}" if task.num_folds else ""
    tested = counted(arms[0].num_documents, "test document")
    lead = f"{_capital(task.kind)} of {tested}{folds}, {counted(len(seeds), 'seed')}."
    head = Head(f"{task.name}: comparison of {counted(len(arms), 'arm')}", lead, finding(comparison), is_good)
    return page(head, sections, made_by)


def arms_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its metrics, the main one with its interval, and its difference from the baseline."""
    main_name, *names = [f"{score.metric} (%)" for score in comparison.arms[0].scores]
    lines = []
    for arm in comparison.arms:
        main, *others = arm.scores
        difference = next(iter(arm.differences), None)
        cells = [*map(percent, (main.mean, main.low, main.high))]
        cells += [*map(points, (difference.mean, difference.low, difference.high))] if difference else ["–"] * 3
        lines.append([arm.arm, *cells, *(percent(score.mean) for score in others)])
    return Table(["arm", main_name, *BOUNDS, "difference", *BOUNDS, *names], lines)


def differences_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm and metric: the difference from the baseline with its interval."""
    verdicts, lines = {1: "better", -1: "worse", 0: "no difference found"}, []
    for arm in comparison.arms:
        for score in (score for score in arm.differences if score.mean is not None):
            verdict = "–" if score.low is None else verdicts[score.sign]
            numbers = map(points, (score.mean, score.low, score.high))
            lines.append([arm.arm, score.metric, *numbers, verdict])
    return Table(["arm", "metric", "points", *BOUNDS, "verdict"], lines)


def points(value: float | None) -> str:
    """Returns a difference with its sign, a dash where there is none."""
    return "–" if value is None else signed(f"{value:+.2f}")


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
    baseline, score = comparison.task.baseline, best.scores[0]
    interval = f"95 % interval {percent(score.low)} to {percent(score.high)}"
    first = f"{best.arm}{' ranks first' if others else ''}: {comparison.metric} {percent(score.mean)} %, {interval}"
    is_baseline = best.arm == baseline
    rival = next((arm for arm in others if (arm.differences if is_baseline else arm.arm == baseline)), None)
    if is_baseline and rival is None:
        return f"{first}, no other arm to compare with"
    if rival is None:
        return f"{first}; the baseline {baseline} has no result"
    return _difference_text(rival, best, comparison) if is_baseline else _difference_text(best, rival, comparison)


def _difference_text(arm: ArmResult, baseline: ArmResult, comparison: DownstreamComparison) -> str:
    """Returns what the difference of an arm from the baseline says, the better one first."""
    metric, num_compared = comparison.metric, sum(bool(one.differences) for one in comparison.arms)
    difference, better, worse = arm.differences[0], arm, baseline
    if difference.low is None:
        gain = f"{metric} {points(difference.mean)} points ({arm.arm} minus {baseline.arm})"
        return f"{gain}, without an interval: the documents tested on are copies or one group"
    if difference.sign < 0:
        difference, better, worse = _negated(difference), baseline, arm
    gain = f"{points(difference.mean)} points, 95 % interval {points(difference.low)} to {points(difference.high)}"
    if difference.sign == 0:
        order = f"({arm.arm} minus {baseline.arm})"
        return f"no difference found between {arm.arm} and {baseline.arm}: {metric} {gain} {order}"
    numbers = " and ".join(f"{percent(one.scores[0].mean)} %" for one in (better, worse))
    corrected = f" (not corrected for {num_compared} comparisons)" if num_compared > 1 else ""
    return f"{better.arm} is better than {worse.arm}: {metric} {numbers}, {gain}{corrected}"


def _negated(score: Score) -> Score:
    mean, low, high = (None if value is None else -value for value in (score.mean, score.high, score.low))
    return replace(score, mean=mean, low=low, high=high)


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


def _chart(comparison: DownstreamComparison) -> Chart:
    """Returns the main metric of every arm with its interval."""
    pairs = [(number, arm.scores[0]) for number, arm in enumerate(comparison.arms)]
    known = [(float(number), score) for number, score in pairs if score.mean is not None]
    values = [score.mean or 0.0 for _, score in known]
    ends = [(value, score.low or 0.0, score.high or 0.0) for value, (_, score) in zip(values, known, strict=True)]
    errors = [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]
    series = Series(comparison.metric, "blue", [number for number, _ in known], values, errors)
    titles = ("arm", f"{comparison.metric} (%)")
    return Chart("Means and 95 % intervals", titles, [series], "points", [arm.arm for arm in comparison.arms])


def _cost_table(comparison: DownstreamComparison) -> Table:
    lines = [
        [
            arm.arm,
            f"{arm.cost.train_seconds:,.1f}",
            f"{arm.cost.documents_per_second:,.1f}",
            f"{arm.cost.peak_memory_bytes / 1e9:.2f}",
            f"{arm.cost.num_parameters / 1e6:,.1f}",
        ]
        for arm in comparison.arms
    ]
    return Table(["arm", "training (s)", "documents/s predicted", "peak memory (GB)", "M parameters"], lines)


def _values_table(columns: Sequence[str], values: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Returns a line per arm with its number in each column, a dash where it has none."""
    lines = [[arm, *(percent(of_arm.get(column), 1) for column in columns)] for arm, of_arm in values.items()]
    return Table(["arm", *columns], lines)


def _settings_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its model, what it reads, how chunks are pooled, and the values chosen for it."""
    lines = []
    for result in comparison.arms:
        arm = comparison.task.arms[result.arm]
        unit = "tokens" if arm.model else "words or characters"
        length = f"{arm.length:,} {unit}" if arm.length else ("all positions" if arm.model else "all")
        is_pooled = arm.reads == "chunks" and comparison.task.kind == "classification"
        trained = "–" if not arm.model else "head" if arm.frozen else "all"
        cells = [arm.model or "TF-IDF", arm.reads, length, arm.pooling if is_pooled else "–", trained]
        lines.append([result.arm, *cells, values_in_words(result.values)])
    return Table(["arm", "model", "reads", "length", "pooling", "trained", "chosen values"], lines)


def _search_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm and choice of values with its development score."""
    tried = [(arm.arm, one) for arm in comparison.arms for one in arm.searched]
    lines = [[name, values_in_words(one.values), percent(one.dev_score, 1)] for name, one in tried]
    return Table(["arm", "values", "development score (%)"], lines)


def _facts(comparison: DownstreamComparison, seeds: Sequence[int]) -> dict[str, str]:
    task = comparison.task
    untested = f"{comparison.num_untested:,}, since no training document has all of their labels"
    return {
        "documents": f"{task.num_documents:,}",
        "records set aside": f"{task.num_set_aside:,}",
        "labels": f"{len(task.labels):,}{', several per document' if task.is_multilabel else ''}",
        "folds": f"{task.num_folds}, every document in one test set per seed" if task.num_folds else "one split",
        **({"not tested": untested} if comparison.num_untested else {}),
        "seeds": ", ".join(map(str, seeds)),
        "documents tested": f"{comparison.arms[0].num_documents:,}",
    }


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
