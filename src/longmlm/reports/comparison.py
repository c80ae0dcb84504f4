"""The report of a comparison: a table of its arms, curves with bands over seeds, and a page."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Difference, Measured, paired_difference
from longmlm.artifacts.comparison import Arm, Comparison, accuracy_of, certainty, worded
from longmlm.artifacts.evaluation import ViewName
from longmlm.reports.charts import Chart, Colour, Series, write_png
from longmlm.reports.pages import PAGE_FILE, Head, Section, page, write_page
from longmlm.reports.tables import Table, signed

RECOVERY_PICTURE, BLOCKS_PICTURE = "recovery.png", "blocks.png"
CONTEXT_VIEWS: tuple[ViewName, ...] = ("base_cut", "base_windows", "long_after", "long_after_cut")
SURE = 0.995
COLOURS: tuple[Colour, ...] = ("blue", "amber", "good", "bad", "pale")


def write_comparison(comparison: Comparison, folder: Path, made_by: str) -> None:
    """Writes comparison.json, the pictures and the page; `made_by` is the command with its settings."""
    write_png(recovery_chart(comparison), folder / RECOVERY_PICTURE)
    write_png(blocks_chart(comparison), folder / BLOCKS_PICTURE)
    write_page(comparison_page(comparison, made_by), folder / PAGE_FILE)
    artifact.write(folder / Comparison.FILE, comparison)


def comparison_page(comparison: Comparison, made_by: str) -> str:
    """Returns the page about a comparison."""
    num_seeds = len({trial.seed for trial in comparison.trials})
    sections = [
        Section("Arms, the best one first", _arms_text(comparison), arms_table(comparison)),
        Section("Recovery", _curves_text(comparison), recovery_chart(comparison)),
        Section("Before training, by block of positions", "Means over seeds.", blocks_chart(comparison)),
        Section(
            "By block of positions",
            "Accuracy in percent before → after training, means over seeds.",
            blocks_table(comparison),
        ),
    ]
    if any(trial.measured for trial in comparison.trials):
        text = "base_windows: the base model on the same tokens, in windows of its length."
        sections.append(Section("What the longer context is worth", text, context_table(comparison)))
    sections.append(Section("All trials", "", trials_table(comparison)))
    head = Head(
        f"{comparison.model.rstrip('/').rpartition('/')[2]}: comparison of {len(comparison.arms())} arms",
        f"{len(comparison.trials)} trials with {num_seeds} seeds on rows of {comparison.row_length:,} tokens. Rows, "
        "masks of the held-out rows and, per seed, masks and order of the training rows are the same for all.",
        finding(comparison),
    )
    return page(head, sections, made_by)


def finding(comparison: Comparison) -> str:
    """Returns which arm is best, against the plain arm or else the next one, and how certain that is."""
    best, *others = comparison.arms()
    rival = next((arm for arm in others if arm.name == comparison.plain), others[0] if others else None)
    if rival is None:
        return f"{best.name}: {best.after:.2f} % after training, {best.before:.2f} % before"
    recovered = [_tokens(arm.tokens_to_recovery()) for arm in (best, rival)]
    ends = f"{best.after:.2f} % against {rival.after:.2f} % after training"
    probability = certainty(difference := best.better_than(rival))
    sure = "" if probability is None else f", {_points(difference)} points ({_share(probability)} certain)"
    pace = (
        f"recovered after {recovered[0]} M tokens, {rival.name} after {recovered[1]}; " if recovered[0] != "–" else ""
    )
    return f"{best.name} is best: {pace.replace('after –', 'not at all')}{ends}{sure}"


def arms_table(comparison: Comparison) -> Table:
    """Returns a line per arm: accuracy before and after training, the difference to the plain arm, and recovery."""
    arms, control = comparison.arms(), comparison.control_trials()
    plain = next((arm for arm in arms if arm.name == comparison.plain), None)
    header = [
        "arm",
        "values",
        "before",
        "after",
        "− plain",
        "M tokens to recovery",
        *(["against control"] if control else []),
    ]
    lines = []
    for arm in arms:
        difference = arm.better_than(plain) if plain and arm is not plain else None
        recovery = [_tokens(arm.tokens_to_recovery()), *([_tokens(arm.tokens_to_recovery(control))] if control else [])]
        accuracies = [f"{arm.before:.2f}", f"{arm.after:.2f}{_spread([t.after for t in arm.trials])}"]
        lines.append([arm.name, ", ".join(worded(arm.values)) or "–", *accuracies, _points(difference), *recovery])
    return Table(header, lines)


def blocks_table(comparison: Comparison) -> Table:
    """Returns a line per arm with the accuracy of each block before and after training."""
    num_blocks = max(len(trial.before.blocks) for arm in comparison.arms() for trial in arm.trials)
    lines = []
    for arm in comparison.arms():
        before = zip(*(_blocks(trial.before) for trial in arm.trials), strict=True)
        after = zip(*(_blocks(trial.after) for trial in arm.trials), strict=True)
        lines.append(
            [arm.name, *(f"{_percent(_mean(a))} → {_percent(_mean(b))}" for a, b in zip(before, after, strict=True))]
        )
    return Table(["arm", *(f"block {number}" for number in range(1, num_blocks + 1))], lines)


def context_table(comparison: Comparison) -> Table:
    """Returns, per arm, the accuracies that the evaluate stage measured and the gain from context, paired by row."""
    lines = []
    for arm in (arm for arm in comparison.arms() if all("base_windows" in trial.measured for trial in arm.trials)):
        measured = {name: [trial.measured[name] for trial in arm.trials] for name in CONTEXT_VIEWS}
        means = [f"{_mean([*map(accuracy_of, values)]):.2f}" for values in measured.values()]
        gain = paired_difference(measured["long_after"], measured["base_windows"])
        lines.append([arm.name, *means, _points(gain)])
    return Table(["arm", *CONTEXT_VIEWS, "long_after − base_windows"], lines)


def trials_table(comparison: Comparison) -> Table:
    """Returns a line per trial."""
    lines = [
        [
            trial.arm,
            ", ".join(worded(trial.values)) or "–",
            str(trial.seed),
            f"{accuracy_of(trial.before):.2f}",
            f"{accuracy_of(trial.after):.2f}",
            f"{trial.curve[-1].tokens / 1e6:.2f}",
            _tokens(Arm(name=trial.arm, values={}, trials=(trial,)).tokens_to_recovery()),
        ]
        for trial in comparison.trials
    ]
    return Table(["arm", "values", "seed", "before", "after", "M tokens", "M tokens to recovery"], lines)


def recovery_chart(comparison: Comparison) -> Chart:
    """Returns the accuracy of the plain arm and the best others over tokens, with the range over seeds as a band."""
    series = [_curve(arm, colour) for arm, colour in _drawn(comparison)]
    base = comparison.trials[0].base_cut
    goal = [] if base is None else [Series("base_cut", "faint", (), (base,))]
    return Chart("Accuracy during training", ("tokens (thousands)", "masked-token accuracy (%)"), [*series, *goal])


def blocks_chart(comparison: Comparison) -> Chart:
    """Returns the accuracy before training of the same arms by block."""
    series = []
    for arm, colour in _drawn(comparison):
        columns = zip(*(_blocks(trial.before) for trial in arm.trials), strict=True)
        means = [0.0 if math.isnan(mean := _mean(column)) else mean for column in columns]
        series.append(Series(arm.name, colour, [*map(float, range(len(means)))], means))
    ticks = [f"block {number + 1}" for number in range(max(len(one.values) for one in series))]
    return Chart("Accuracy before training", ("block of positions", "masked-token accuracy (%)"), series, "bars", ticks)


def _drawn(comparison: Comparison) -> list[tuple[Arm, Colour]]:
    """Returns the plain arm and the best of the others, as many as there are colours."""
    arms = comparison.arms()
    plain: list[tuple[Arm, Colour]] = [(arm, "ink") for arm in arms if arm.name == comparison.plain]
    return plain + list(zip([arm for arm in arms if arm.name != comparison.plain], COLOURS, strict=False))


def _curve(arm: Arm, colour: Colour) -> Series:
    """Returns the middle of the range over seeds, with half the range as its error."""
    points = [
        [(line.tokens, accuracy_of(line.held_out)) for line in lines]
        for lines in zip(*(trial.curve for trial in arm.trials), strict=False)
    ]
    tokens = [_mean([count / 1e3 for count, _ in line]) for line in points]
    ranges = [(min(value for _, value in line), max(value for _, value in line)) for line in points]
    errors = [(high - low) / 2 for low, high in ranges] if len(arm.trials) > 1 else None
    return Series(arm.name, colour, tokens, [(low + high) / 2 for low, high in ranges], errors)


def _arms_text(comparison: Comparison) -> str:
    text = (
        "Accuracy in percent, mean over seeds ± standard deviation over seeds. The difference to the plain arm, "
        f"{comparison.plain}, is paired by row and seed; its standard error covers the choice of held-out rows. "
        "Recovered: the first of two consecutive evaluations at or above base_cut, the base model's accuracy at its "
        "own length."
    )
    if control := comparison.control_trials():
        gain = _mean([accuracy_of(trial.after) - accuracy_of(trial.before) for trial in control])
        text += (
            f" Against control: base_cut plus what the base model itself gains by training on as many tokens at its "
            f"own length, {gain:+.2f} points in the end."
        )
    return text


def _curves_text(comparison: Comparison) -> str:
    num_arms = len(comparison.arms())
    shown = f" The {len(_drawn(comparison))} best of {num_arms} arms." if num_arms > len(_drawn(comparison)) else ""
    return f"Whole rows; shaded areas show the range over seeds.{shown}"


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
    return "–" if count is None else f"{count / 1e6:.2f}"


def _points(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    return signed(f"{difference.points:+.2f} ± {difference.standard_error:.2f}")


def _share(probability: float) -> str:
    return f"{100 * probability:.0f} %" if probability < SURE else "over 99 %"
