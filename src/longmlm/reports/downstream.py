"""The report of the downstream command: which arm is best, by how much and how certainly, its costs, and a page."""

from collections.abc import Sequence
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.downstream import ArmResult, DownstreamComparison, Score
from longmlm.errors import counted
from longmlm.reports.charts import Chart, Colour, Series, write_png
from longmlm.reports.downstream_details import (
    MAX_SPANS,
    explained_spans_table,
    explained_texts,
    interval_series,
    label_table,
    position_sections,
    search_table,
    seed_table,
    settings_table,
)
from longmlm.reports.downstream_finding import finding, metric_of, points, sign
from longmlm.reports.pages import Head, Section, page, write_page
from longmlm.reports.tables import Table, percent
from longmlm.scoring.scores import recall_beyond

SCORES_PICTURE, DIFFERENCES_PICTURE = "scores.png", "differences.png"


def write_downstream(comparison: DownstreamComparison, folder: Path, made_by: str) -> None:
    """Writes downstream.json, the pictures and the page; `made_by` is the command with its settings."""
    write_png(scores_chart(comparison), folder / SCORES_PICTURE)
    (folder / DIFFERENCES_PICTURE).unlink(missing_ok=True)
    if _differing(comparison):
        write_png(differences_chart(comparison), folder / DIFFERENCES_PICTURE)
    write_page(downstream_page(comparison, made_by), folder / PAGE_FILE)
    artifact.write(folder / DownstreamComparison.FILE, comparison)


def downstream_page(comparison: DownstreamComparison, made_by: str) -> str:
    """Returns the page about a comparison of arms."""
    task, metric = comparison.task, metric_of(comparison)
    sections = [
        Section(
            "Arms, the best one first" if _is_ranked(comparison) else "Arms",
            _scores_text(comparison),
            arms_table(comparison),
        ),
        Section(f"{_capital(metric)} of each arm", "", scores_chart(comparison)),
    ]
    if _differing(comparison):
        text = _differences_text(comparison)
        sections.append(Section(f"Differences from {task.baseline}", text, differences_table(comparison)))
        title = f"{_capital(metric)}: difference from {task.baseline}"
        sections.append(Section(title, "", differences_chart(comparison)))
    sections.append(Section("Cost", "Means over trials; memory is the most that a trial took.", cost_table(comparison)))
    if task.kind == "labelling":
        sections += position_sections(comparison)
    if task.labels:
        text = "F1 of each label in percent, over the same documents and seeds as the scores above."
        sections.append(Section("By label", text, label_table(comparison)))
    if texts := explained_texts(comparison):
        text = (
            "The longest test documents of the first seed and fold. A number says by how many points the probability "
            "of the predicted label falls when the paragraph above it is removed; below zero, it "
            "rises. A paragraph that the arm does not read has no number. Where an arm reads only a part of the "
            "document, other text takes the place of what is removed."
        )
        sections.append(Section("Which paragraphs the decision comes from", text, texts))
    if (spans := explained_spans_table(comparison)).lines:
        text = (
            "Entities of the longest test documents of the first seed and fold that begin at token "
            f"{comparison.length:,} or later, and what became of them: found, missed although the model read them, or "
            f"never read; at most {MAX_SPANS}."
        )
        sections.append(Section(f"Single entities beyond token {comparison.length:,}", text, spans))
    sections += [
        Section("Settings", "Values were chosen by the development score.", settings_table(comparison)),
        Section("Search", "First seed and fold; best development score over epochs.", search_table(comparison)),
        Section("By seed", f"{_capital(metric)} in percent.", seed_table(comparison)),
    ]
    if comparison.failed:
        lines = [[name, reason] for name, reason in comparison.failed.items()]
        text = "The same command tries them again."
        sections.append(Section("Failed trials", text, Table(["trial", "error"], lines)))
    sections.append(Section(f"{_capital(task.noun)}s", "", _facts(comparison)))
    title = f"{task.name}: comparison of {counted(len(comparison.arms), 'arm')}"
    head = Head(title, _lead(comparison), finding(comparison), _is_good(comparison))
    return page(head, sections, made_by)


def arms_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: its metrics, the main one with its interval, and its difference from the baseline.

    If documents are left out of a difference, a column says how many.
    """
    is_unpaired = any(arm.num_unpaired for arm in comparison.arms)
    shown = [
        number
        for number, score in enumerate(comparison.arms[0].scores)
        if score.metric != recall_beyond(comparison.length)
    ]
    main_name, *names = [f"{comparison.arms[0].scores[number].metric} (%)" for number in shown]
    lines = []
    for arm in comparison.arms:
        main, *others = [arm.scores[number] for number in shown]
        difference = next(iter(arm.differences), None)
        cells = [*map(percent, (main.mean, main.low, main.high))]
        cells += [*map(points, (difference.mean, difference.low, difference.high))] if difference else ["–"] * 3
        left_out = [f"{arm.num_unpaired:,}"] if is_unpaired else []
        lines.append([arm.arm, *cells, *left_out, *(percent(score.mean) for score in others)])
    left_out = [f"{comparison.task.noun}s left out"] if is_unpaired else []
    bounds = ["95 % low", "95 % high"]
    return Table(["arm", main_name, *bounds, "difference", *bounds, *left_out, *names], lines)


def differences_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm and metric: the difference from the baseline with its interval."""
    lines = []
    for arm in _differing(comparison):
        for score in (score for score in arm.differences if score.mean is not None):
            numbers = map(points, (score.mean, score.low, score.high))
            lines.append([arm.arm, score.metric, *numbers, _verdict(score), f"{arm.num_unpaired:,}"])
    return Table(
        ["arm", "metric", "points", "95 % low", "95 % high", "verdict", f"{comparison.task.noun}s left out"],
        lines,
    )


def cost_table(comparison: DownstreamComparison) -> Table:
    """Returns a line per arm: speed in training and at inference, and peak memory, also of prediction where known."""
    has_inference = any(arm.cost.inference_memory_bytes is not None for arm in comparison.arms)
    lines = []
    for arm in comparison.arms:
        cost = arm.cost
        speed = "–" if cost.train_tokens_per_second is None else f"{cost.train_tokens_per_second:,.0f}"
        seconds = f"{cost.train_seconds:,.1f}"
        documents = "–" if cost.documents_per_second is None else f"{cost.documents_per_second:,.1f}"
        memory, parameters = f"{cost.peak_memory_bytes / 1e9:.2f}", f"{cost.num_parameters / 1e6:,.1f}"
        inference = [] if cost.inference_memory_bytes is None else [f"{cost.inference_memory_bytes / 1e9:.2f}"]
        inference = inference or (["–"] if has_inference else [])
        lines.append([arm.arm, speed, seconds, documents, memory, *inference, parameters])
    header = [
        "arm",
        "training tokens/s",
        "training (s)",
        f"{comparison.task.noun}s/s predicted",
        "peak memory (GB)",
        *(["in prediction (GB)"] if has_inference else []),
        "M parameters",
    ]
    return Table(header, lines)


def scores_chart(comparison: DownstreamComparison) -> Chart:
    """Returns the main metric of every arm with its interval; the baseline has another colour."""
    return _ranking(comparison, [(arm, arm.scores[0]) for arm in comparison.arms], f"{metric_of(comparison)} (%)", None)


def differences_chart(comparison: DownstreamComparison) -> Chart:
    """Returns the difference of every other arm from the baseline with its interval."""
    pairs = [(arm, arm.differences[0]) for arm in _differing(comparison)]
    border = (0.0, comparison.task.baseline)
    return _ranking(
        comparison, pairs, f"{metric_of(comparison)}: difference from {comparison.task.baseline} (points)", border
    )


def _ranking(
    comparison: DownstreamComparison,
    pairs: Sequence[tuple[ArmResult, Score]],
    title: str,
    border: tuple[float, str] | None,
) -> Chart:
    series: list[Series] = []
    kinds: tuple[tuple[str, Colour, bool], ...] = (("baseline", "faint", True), ("other arms", "blue", False))
    for name, colour, is_baseline in kinds:
        chosen = [
            (float(number), score)
            for number, (arm, score) in enumerate(pairs)
            if (arm.arm == comparison.task.baseline) == is_baseline
        ]
        series += interval_series(name, colour, chosen)
    names = [arm.arm for arm, _ in pairs]
    return Chart("Means and 95 % intervals", (title, ""), series, "ranking", names, border)


def _differing(comparison: DownstreamComparison) -> list[ArmResult]:
    return [arm for arm in comparison.arms if arm.differences]


def _is_ranked(comparison: DownstreamComparison) -> bool:
    """Returns whether the main metrics of the arms differ."""
    return len({percent(arm.scores[0].mean) for arm in comparison.arms}) > 1


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _verdict(score: Score) -> str:
    return "–" if score.low is None else {1: "better", -1: "worse", 0: "no difference found"}[sign(score)]


def _is_good(comparison: DownstreamComparison) -> bool | None:
    if comparison.failed:
        return False
    differences = comparison.arms[0].differences
    return True if differences and sign(differences[0]) > 0 else None


def _seeds(comparison: DownstreamComparison) -> list[int]:
    return sorted({seed for arm in comparison.arms for seed in arm.seeds})


def _lead(comparison: DownstreamComparison) -> str:
    task, num_seeds = comparison.task, len(_seeds(comparison))
    tested = max(comparison.arms, key=lambda arm: arm.num_documents)
    num_documents, per_seed = tested.num_documents, tested.documents_per_seed
    noun = task.noun
    differ = not task.num_folds and 0 < per_seed < num_documents
    drawn = f" Each seed draws other test {noun}s, {per_seed:,} of these." if differ else ""
    folds = f", cross-validation with {counted(task.num_folds, 'fold')}" if task.num_folds else ""
    untested = f" Not tested: {_untested(comparison)}." if task.num_untested else ""
    tested_with = f"{counted(num_documents, f'test {noun}')}{folds}, {counted(num_seeds, 'seed')}"
    return f"{_capital(task.kind)} of {tested_with}.{drawn}{untested}"


def _untested(comparison: DownstreamComparison) -> str:
    noun, number = comparison.task.noun, comparison.task.num_untested
    with_seed = " with some seed" if len(_seeds(comparison)) > 1 else ""
    return f"{counted(number, noun)}{with_seed}, since no training {noun} has all of the labels"


def _scores_text(comparison: DownstreamComparison) -> str:
    has_seeds, noun = len(_seeds(comparison)) > 1, comparison.task.noun
    return (
        f"Ranked by {metric_of(comparison)}: computed over all test {noun}s of a seed"
        f"{', averaged over seeds' if has_seeds else ''}. Low and high: 95 % interval of 2,000 bootstrap resamples of "
        f"the {noun}s{' and of the seeds' if has_seeds else '; one seed says nothing about how much training varies'}. "
        f"The difference is that from the baseline, {comparison.task.baseline}."
    )


def _differences_text(comparison: DownstreamComparison) -> str:
    num_arms, noun = len(_differing(comparison)), comparison.task.noun
    corrected = f" Not corrected for {num_arms} comparisons." if num_arms > 1 else ""
    return (
        f"In percentage points, paired: both arms on the same {noun}s and seeds. Where the interval includes zero, no "
        f"difference was found. {_capital(noun)}s that only one of the two arms predicted are left out.{corrected}"
    )


def _facts(comparison: DownstreamComparison) -> dict[str, str]:
    task = comparison.task
    per_document, noun = ", several per document" if task.is_multilabel else "", task.noun
    return {
        f"{noun}s": f"{task.num_documents:,}",
        "records set aside": f"{task.num_set_aside:,}",
        "labels": f"{len(task.labels):,}{per_document}" if task.labels else "–",
        "folds": f"{task.num_folds}, every {noun} in one test set per seed" if task.num_folds else "one split",
        **({"not tested": _untested(comparison)} if task.num_untested else {}),
        "seeds": ", ".join(map(str, _seeds(comparison))),
        f"{noun}s tested, by arm": ", ".join(f"{arm.arm} {arm.num_documents:,}" for arm in comparison.arms),
    }
