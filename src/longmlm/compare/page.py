"""The report of a comparison: a table of its arms, curves with bands over seeds, and a page."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import RECOVERED, Measured, paired_difference
from longmlm.artifacts.artifact import PAGE_FILE
from longmlm.artifacts.evaluation import BLOCKS_PICTURE, RECOVERY_PICTURE, ViewName
from longmlm.compare.comparison import Arm, Comparison, accuracy_of
from longmlm.errors import counted
from longmlm.experiments.experiment import experiment_page, title_of, values_in_words
from longmlm.reports.charts import PALETTE, Chart, Colour, Series, write_png
from longmlm.reports.pages import Head, Section, public_path, write_page
from longmlm.reports.tables import Table, difference_text, signed

MAX_PROBABILITY = 0.99  # that a few seeds can show
MIN_TOKENS = 1e5  # that are shown with two decimals of a million
SAME_TOKENS = 0.02  # arms whose numbers of tokens differ by less are trained on as many
CONTEXT_VIEWS: tuple[ViewName, ...] = ("base_cut", "base_chunks", "long_after", "long_after_cut")


def write_comparison(comparison: Comparison, folder: Path, made_by: str) -> None:
    """Writes comparison.json, the pictures and the page; `made_by` is the command with its settings."""
    write_png(recovery_chart(comparison), folder / RECOVERY_PICTURE)
    write_png(blocks_chart(comparison), folder / BLOCKS_PICTURE)
    write_page(comparison_page(comparison, made_by), folder / PAGE_FILE)
    artifact.write(folder / Comparison.FILE, comparison)


def comparison_page(comparison: Comparison, made_by: str) -> str:
    """Returns the page about a comparison."""
    trials = comparison.trials
    num_arms, num_drawn = len(comparison.arms()), len(_drawn(comparison))
    shown = f" The {num_drawn} best of {num_arms} arms." if num_arms > num_drawn else ""
    sections = [
        Section("Arms, the best one first", _arms_text(comparison), arms_table(comparison)),
        Section("Recovery", f"Whole rows; shaded areas show the range over seeds.{shown}", recovery_chart(comparison)),
        Section("Before training, by block of positions", "Means over seeds.", blocks_chart(comparison)),
        Section(
            "By block of positions",
            "Accuracy in percent before → after training, means over seeds.",
            blocks_table(comparison),
        ),
    ]
    text = "base_chunks: the base model on the same tokens, in chunks of its length. "
    text += "Part of the difference may be adaptation to the corpus."
    sections.append(Section("What the longer context is worth", text, context_table(comparison)))
    sections.append(Section("All trials", "Accuracy in percent.", trials_table(comparison)))
    size = f"{counted(len(trials), 'trial')} with {counted(len({trial.seed for trial in trials}), 'seed')}"
    title = title_of(public_path(comparison.model), num_arms)
    head = Head(title, f"{size}{_rows_text(comparison)}", finding(comparison))
    return experiment_page(head, sections, comparison.failed, made_by)


def finding(comparison: Comparison) -> str:
    """Returns which arm ranks first and by what, its numbers and those of the baseline or else of the next arm."""
    best, *others = comparison.arms()
    label, tokens = best.name, best.tokens_to_recovery()
    baseline = comparison.baseline_arm()
    rival = baseline if baseline in others else next(iter(others), None)
    if rival is None:
        return f"{label}: {best.after:.2f} % after training, {best.before:.2f} % before"
    name, recovered = rival.name, rival.tokens_to_recovery()
    by_failure = rival.num_failed > best.num_failed
    by_recovery = tokens != recovered and not by_failure
    by_what = f"by {'tokens to recovery' if by_recovery else 'accuracy after training'}"
    parts = [f"{label} ranks first {f'because a trial of {name} failed' if by_failure else by_what}: "]
    if tokens is not None:
        parts.append(f"{_recovery(best)}, {name} {_recovery(rival)}; ")
    if 0 < len(pairs := best.pairs_with(rival)) < max(len(best.trials), len(rival.trials)):
        mine, its = zip(*pairs, strict=True)
        best, rival = replace(best, trials=mine), replace(rival, trials=its)
        parts.append(f"with {'the seed' if len(pairs) == 1 else 'the seeds'} that both have, ")
    is_same = math.isclose(best.tokens, rival.tokens, rel_tol=SAME_TOKENS)
    mine, its = ("" if is_same else f" on {_tokens(arm.tokens)} M tokens" for arm in (best, rival))
    parts.append(f"after training{mine} {best.after:.2f} %, {name}{its} {rival.after:.2f} %")
    if gain := best.gain_over(rival):
        parts.append(f", {difference_text(gain)} points")
        if len(best.pairs_with(rival)) == 1:
            parts.append(" (standard error over held-out rows; training noise not included)")
        elif (probability := best.probability_over(rival)) is not None:
            percent = "> 99" if probability > MAX_PROBABILITY else f"{100 * probability:.0f}"
            parts.append(f" (probability that it is better: {percent} %)")
    elif not any(mine.has_rows_of(its) for mine, its in itertools.product(best.trials, rival.trials)):
        parts.append(" (these accuracies cannot be compared, since held-out rows or masks differ)")
    return "".join(parts)


def _recovery(arm: Arm) -> str:
    """Returns whether an arm has recovered, and how far from base_chunks it is after training."""
    tokens, gain = arm.tokens_to_recovery(), arm.recovery
    now = f" ({gain.compared_with('base_chunks')})" if gain else ""
    if tokens is None:
        return f"has not recovered{now}"
    when = f"recovered after {_tokens(tokens)} M tokens" if tokens else "had recovered before training"
    return f"{when}{now}"


def arms_table(comparison: Comparison) -> Table:
    """Returns a line per arm: accuracy before and after training, the difference to the baseline, and recovery."""
    control, baseline = comparison.control_trials(), comparison.baseline_arm()
    header = [
        "arm",
        "searched values",
        "before (%)",
        "after (%, ± SD)",
        "difference to baseline (± SE)",
        "M tokens to recovery",
        *(["incl. control gain"] if control else []),
    ]
    lines = []
    for arm in comparison.arms():
        gain = arm.gain_over(baseline) if baseline and arm != baseline else None
        recovery = [_tokens(arm.tokens_to_recovery()), *([_tokens(arm.tokens_to_recovery(control))] if control else [])]
        accuracies = [f"{arm.before:.2f}", f"{arm.after:.2f}{_spread([t.after for t in arm.trials])}"]
        lines.append([arm.name, values_in_words(arm.values), *accuracies, difference_text(gain), *recovery])
    return Table(header, lines)


def blocks_table(comparison: Comparison) -> Table:
    """Returns a line per arm with the accuracy of each block before and after training."""
    names = comparison.block_names()
    lines = []
    for arm in comparison.arms():
        before = zip(*(_blocks(trial.before) for trial in arm.trials), strict=True)
        after = zip(*(_blocks(trial.after) for trial in arm.trials), strict=True)
        cells = [f"{_percent(_mean(a))} → {_percent(_mean(b))}" for a, b in zip(before, after, strict=True)]
        lines.append([arm.name, *cells, *["–"] * (len(names) - len(cells))])
    return Table(["arm", *names], lines)


def context_table(comparison: Comparison) -> Table:
    """Returns, per arm, the accuracies that the evaluate stage measured and the gain from context, paired by row."""
    lines = []
    for arm in (arm for arm in comparison.arms() if all("base_chunks" in trial.measured for trial in arm.trials)):
        measured = {name: [trial.measured[name] for trial in arm.trials] for name in CONTEXT_VIEWS}
        means = [f"{_mean([*map(accuracy_of, values)]):.2f}" for values in measured.values()]
        gain = paired_difference(measured["long_after"], measured["base_chunks"])
        lines.append([arm.name, *means, difference_text(gain)])
    return Table(["arm", *CONTEXT_VIEWS, "long_after − base_chunks"], lines)


def trials_table(comparison: Comparison) -> Table:
    """Returns a line per trial."""
    lines = [
        [
            trial.arm,
            values_in_words(trial.values),
            str(trial.seed),
            f"{accuracy_of(trial.before):.2f}",
            f"{accuracy_of(trial.after):.2f}",
            _tokens(float(trial.curve[-1].tokens)),
            _tokens(Arm(name=trial.arm, values={}, trials=(trial,)).tokens_to_recovery()),
        ]
        for trial in comparison.trials
    ]
    return Table(["arm", "searched values", "seed", "before", "after", "M tokens", "M tokens to recovery"], lines)


def recovery_chart(comparison: Comparison) -> Chart:
    """Returns the accuracy of the baseline and the best others over tokens, with the range over seeds as a band."""
    series = [_curve(arm, arm.name, colour) for arm, colour in _drawn(comparison)]
    reference = comparison.baseline_arm() or comparison.arms()[0]
    base = reference.trials[0].base_chunks
    is_shared = all(trial.base_chunks == base for arm in comparison.arms() for trial in arm.trials)
    name = "base_chunks" if is_shared else f"base_chunks of {reference.name}"
    goal = [] if base is None else [Series(name, "faint", (), (base,))]
    return Chart("Accuracy during training", ("tokens (thousands)", "masked-token accuracy (%)"), [*series, *goal])


def blocks_chart(comparison: Comparison) -> Chart:
    """Returns the accuracy before training of the same arms by block."""
    series = []
    for arm, colour in _drawn(comparison):
        columns = zip(*(_blocks(trial.before) for trial in arm.trials), strict=True)
        means = [0.0 if math.isnan(mean := _mean(column)) else mean for column in columns]
        grey: Colour = "faint" if colour == "ink" else colour  # a bar in the colour of text glares on a dark page
        series.append(Series(arm.name, grey, [*map(float, range(len(means)))], means))
    titles = ("positions in the row (tokens)", "masked-token accuracy (%)")
    return Chart("Accuracy before training", titles, series, "bars", comparison.block_names())


def _drawn(comparison: Comparison) -> list[tuple[Arm, Colour]]:
    """Returns the baseline and the best of the other arms, as many as there are colours."""
    baseline = comparison.baseline_arm()
    drawn: list[tuple[Arm, Colour]] = [(baseline, "ink")] if baseline else []
    return drawn + list(zip([arm for arm in comparison.arms() if arm != baseline], PALETTE, strict=False))


def _curve(arm: Arm, label: str, colour: Colour) -> Series:
    """Returns the middle of the range over seeds, with half the range as its error."""
    points = [
        [(line.tokens, accuracy_of(line.held_out)) for line in lines]
        for lines in zip(*(trial.curve for trial in arm.trials), strict=False)
    ]
    tokens = [_mean([count / 1e3 for count, _ in line]) for line in points]
    ranges = [(min(value for _, value in line), max(value for _, value in line)) for line in points]
    errors = [(high - low) / 2 for low, high in ranges] if len(arm.trials) > 1 else None
    return Series(label, colour, tokens, [(low + high) / 2 for low, high in ranges], errors)


def _rows_text(comparison: Comparison) -> str:
    """Returns whether the trials have the same rows and held-out masks, so that they are paired, and their length."""
    trials = [trial for trial in comparison.trials if trial.arm != comparison.control]
    others = [trial.arm for trial in trials if not trial.has_rows_of(trials[0])]
    if others:
        names = ", ".join(dict.fromkeys(others))
        return f". Rows or held-out masks differ from those of {trials[0].arm} for {names}: they are not paired."
    length = f" on rows of {comparison.row_length:,} tokens"
    but = f" but {comparison.control}, the control," if comparison.control_trials() else ""
    return f"{length}. All arms{but} have the same rows and, on held-out rows, the same masks."


def _arms_text(comparison: Comparison) -> str:
    text = (
        "Ranked by fewer tokens to recovery, or else higher accuracy after training. Accuracy in percent, mean over "
        "seeds ± standard deviation (SD) over seeds. The difference "
        f"to the baseline, {comparison.baseline}, is paired by row and seed; its standard error (SE) covers the choice "
        f"of held-out rows and, with two or more seeds, the variation between seeds. {RECOVERED}"
        f"{_shared_base(comparison)}{_distillations(comparison)}"
    )
    if control := comparison.control_trials():
        gain = _mean([accuracy_of(trial.after) - accuracy_of(trial.before) for trial in control])
        text += (
            " Including the control gain: base_chunks plus what the base model itself gains by training on as many "
            f"tokens at its own length, {signed(f'{gain:+.2f}')} points in the end. A loss does not lower it."
        )
    return text


def _distillations(comparison: Comparison) -> str:
    """Returns a sentence on the distillation tokens of each arm, and their FLOP."""
    found = {trial.arm: trial.distilled for arm in comparison.arms() for trial in arm.trials if trial.distilled}
    parts = (
        f"{_tokens(float(distilled.tokens))} M tokens for {name} (each at most {distilled.flop_ratio:.2f} times "
        "the FLOP per training token)"
        for name, distilled in found.items()
    )
    each = ", ".join(parts)
    return each and f" Token counts include the distillation: {each}."


def _shared_base(comparison: Comparison) -> str:
    """Returns base_chunks in a sentence if all arms that are compared have the same."""
    found = {trial.base_chunks for arm in comparison.arms() for trial in arm.trials}
    value = found.pop() if len(found) == 1 else None
    return "" if value is None else f" On these rows, base_chunks is {value:.2f} %."


def _blocks(measured: Measured) -> list[float]:
    return [math.nan if block.accuracy is None else block.accuracy for block in measured.blocks]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _spread(measured: Sequence[Measured]) -> str:
    """Returns the standard deviation over seeds; empty for a single one."""
    return f" ± {statistics.stdev(map(accuracy_of, measured)):.2f}" if len(measured) > 1 else ""


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def _tokens(count: float | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e6:.2f}" if count >= MIN_TOKENS or not count else f"{count / 1e6:.4f}"
