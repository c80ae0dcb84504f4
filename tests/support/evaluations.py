"""A made-up evaluation, and evaluations that were changed and signed again."""

from dataclasses import replace
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import (
    GROUPINGS,
    Accuracy,
    Difference,
    FilledMask,
    Grouping,
    Measured,
    group_names,
)
from longmlm.artifacts.evaluation import Evaluation, EvaluationSources
from longmlm.artifacts.metrics import EvaluationMetrics
from longmlm.settings.evaluate import EvaluateRecipe

NOTHING = Accuracy(None, None, None, 0)
SOURCES = EvaluationSources(
    rows="some/rows", rows_sha256="1" * 64, base="b", before="l", after="a & <b>", after_sha256="0" * 64
)
EXAMPLES = (
    FilledMask(
        7, 38, "He came to the", " of the king.", " house", ((" house", 0.75), (" <hut>", 0.125), (" inn", 0.0625))
    ),
    FilledMask(9, 37, "天下", "。", "人", (("事", 0.5), ("人", 0.25), ("家", 0.125))),
)


ROW_LENGTH, BASE_POSITIONS = 40, 16


def grouped(accuracy: float, selected: int) -> dict[Grouping, dict[str, Accuracy]]:
    """Returns the accuracy of each group, 2 points above the next; the last one has no tokens."""
    groups = {}
    for grouping in GROUPINGS[1:]:
        *names, last = group_names(grouping, BASE_POSITIONS, ROW_LENGTH)
        counts = enumerate(names)
        groups[grouping] = {name: Accuracy(accuracy - 2 * at, 0.5, 3.0, selected // 10) for at, name in counts}
        groups[grouping][last] = NOTHING
    return groups


def measured(accuracy: float, num_blocks: int = 3, error: float = 0.5) -> Measured:
    """Returns the accuracy of 3 blocks, those beyond `num_blocks` without selected tokens."""
    parts = [Accuracy(accuracy - 0.5 * number, 0.25, 3.0, 100) for number in range(num_blocks)]
    parts += [NOTHING] * (3 - num_blocks)
    selected, correct = 100 * num_blocks, round(accuracy * num_blocks)
    whole, groups = Accuracy(accuracy, error, 3.0, selected), grouped(accuracy, selected)
    return Measured(whole, tuple(parts), tuple(parts), (selected,), (correct,), groups=groups)


def on_rows(*correct: int) -> Measured:
    """Returns the accuracy of rows of 10 selected tokens each, of which so many are predicted correctly."""
    share = 100 * sum(correct) / (10 * len(correct))
    whole = Accuracy(share, 1.0, 3.0, 10 * len(correct))
    return Measured(whole, (), (), (10,) * len(correct), correct)


def curve_line(step: int, accuracy: float) -> EvaluationMetrics:
    recovery = {"recovered_at_step": 20, "recovered_at_tokens": 12_345} if step == 20 else {}
    gain = Difference(accuracy - 9.0, 0.5)
    held_out = measured(accuracy, 1)
    base = {"base_chunks": 9.0, "base_cut": 8.5}
    return EvaluationMetrics(step=step, tokens=10 * step, held_out=held_out, recovery=gain, **base, **recovery)


FULL = Evaluation(
    row_length=ROW_LENGTH,
    base_positions=BASE_POSITIONS,
    position_starts=(0, 16, 32),
    num_rows=25,
    recipe=EvaluateRecipe(),
    precision="no",
    sources=SOURCES,
    measured={
        "base_cut": measured(30.0, 1),
        "base_chunks": measured(29.0),
        "long_before": measured(12.0),
        "long_after": measured(31.5),
        "long_after_cut": measured(32.0, 1),
    },
    gains={
        grouping: {name: Difference(2.5, 0.5) if one.num_selected else None for name, one in groups.items()}
        for grouping, groups in grouped(31.5, 300).items()
    },
    curve=(curve_line(0, 3.0), curve_line(10, 8.0), curve_line(20, 9.5)),
    examples=EXAMPLES,
).signed()


def forge(folder: Path, view: str, **values: object) -> Evaluation:
    """Changes the accuracy of a view on whole rows as if it had been measured so, and returns the evaluation."""
    path = folder / Evaluation.FILE
    evaluation = artifact.read(Evaluation, path)
    measured = replace(evaluation.measured[view], whole=replace(evaluation.measured[view].whole, **values))
    forged = replace(evaluation, measured=evaluation.measured | {view: measured}).signed()
    artifact.write(path, forged)
    return forged


def worse_on_short_texts(folder: Path, lost_per_row: int) -> Evaluation:
    """Changes long_after_cut to what base_cut is, less so many predictions per row; returns the evaluation."""
    path = folder / Evaluation.FILE
    evaluation = artifact.read(Evaluation, path)
    base = evaluation.measured["base_cut"]
    lost = 100 * lost_per_row * len(base.correct) / base.whole.num_selected
    whole = replace(base.whole, accuracy=base.whole.accuracy - lost)
    short = replace(base, correct=tuple(correct - lost_per_row for correct in base.correct), whole=whole)
    forged = replace(evaluation, measured={**evaluation.measured, "long_after_cut": short}).signed()
    artifact.write(path, forged)
    return forged
