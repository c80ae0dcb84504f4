"""Measurements to evaluation.json, a table, two pictures and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longmlm.evaluation.held_out import Accuracy, Measured
from longmlm.folders import write_json
from longmlm.pages import Section, Series, Table, draw, page

NAMES = ("base_cut", "base_windows", "long_before", "long_after")
EXPLAINED = {
    "base_cut": "base model, the start of the row, cut to its length",
    "base_windows": "base model, the whole row in windows of its length",
    "long_before": "long model before training, whole row",
    "long_after": "long model after training, whole row",
}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements by name, the length of a block, where models and rows lie, and the run's evaluations by step."""

    measured: Mapping[str, Measured]
    block: int
    row_length: int
    num_rows: int
    sources: Mapping[str, str]
    curve: Sequence[Mapping[str, Any]]

    @property
    def shown(self) -> list[str]:
        """The names that the table shows, as far as they were measured."""
        return [name for name in NAMES if name in self.measured]


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Writes evaluation.json, blocks.png, recovery.png where there is a curve, and index.html into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = [
        Section("Accuracy", _explanation(evaluation), accuracy_table(evaluation)),
        Section("By block of positions", "Bars are two standard errors.", _draw_blocks(evaluation, folder)),
    ]
    if evaluation.curve:
        text = "Held-out accuracy on whole rows while the long model is trained, and what the base model reaches."
        sections.append(Section("Recovery", text, _draw_curve(evaluation, folder)))
    lead = f"{evaluation.num_rows:,} held-out rows of {evaluation.row_length} tokens, one frozen mask each."
    (folder / "index.html").write_text(page("Masked-token accuracy", lead, sections), encoding="utf-8")
    write_json(folder / "evaluation.json", as_json(evaluation))


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the evaluation as evaluation.json holds it, `gains` in percent points."""
    measured = evaluation.measured
    gains = {}
    if after := measured.get("long_after"):
        gains = {
            "recovered": after.whole.accuracy >= measured["base_cut"].whole.accuracy,
            "context": after.whole.accuracy - measured["base_windows"].whole.accuracy,
        }
    return {
        "row_length": evaluation.row_length,
        "block": evaluation.block,
        "num_rows": evaluation.num_rows,
        "sources": dict(evaluation.sources),
        "measured": {name: asdict(one) for name, one in measured.items()},
        "gains": gains,
        "curve": list(evaluation.curve),
    }


def accuracy_table(evaluation: Evaluation) -> Table:
    """Returns a line for whole rows and one for each block, accuracies in percent with their standard errors."""
    names = evaluation.shown
    lines = [["whole row", *(_cell(evaluation.measured[name].whole) for name in names)]]
    for number in range(len(evaluation.measured[names[0]].blocks)):
        cells = (_cell(evaluation.measured[name].blocks[number]) for name in names)
        lines.append([_block_name(evaluation, number), *cells])
    return Table(["accuracy in %", *names], lines)


def _explanation(evaluation: Evaluation) -> str:
    explained = "; ".join(f"{name}: {EXPLAINED[name]}" for name in evaluation.shown)
    count = evaluation.measured[evaluation.shown[-1]].whole.num_selected
    return f"Percent of {count:,} selected tokens told right, ± one standard error. {explained}."


def _block_name(evaluation: Evaluation, number: int) -> str:
    first = number * evaluation.block
    return f"{first}–{min(first + evaluation.block, evaluation.row_length) - 1}"


def _cell(accuracy: Accuracy) -> str:
    return f"{accuracy.accuracy:.2f} ± {accuracy.standard_error:.2f}" if accuracy.num_selected else "–"


def _draw_blocks(evaluation: Evaluation, folder: Path) -> Path:
    path = folder / "blocks.png"
    series = []
    for name in evaluation.shown:
        blocks = [(place, one) for place, one in enumerate(evaluation.measured[name].blocks) if one.num_selected]
        values, errors = [one.accuracy for _, one in blocks], [2 * one.standard_error for _, one in blocks]
        series.append(Series(name, [place for place, _ in blocks], values, errors))
    num_blocks = len(evaluation.measured[evaluation.shown[0]].blocks)
    ticks = [_block_name(evaluation, number) for number in range(num_blocks)]
    draw(path, "Accuracy by block of positions", ("position in the row", "accuracy (%)"), series, ticks)
    return path


def _draw_curve(evaluation: Evaluation, folder: Path) -> Path:
    path = folder / "recovery.png"
    levels = [
        Series(name, [], [evaluation.measured[name].whole.accuracy], is_line=True) for name in ("base_cut", "base_windows")
    ]
    whole = [line["held_out"]["whole"] for line in evaluation.curve]
    steps = [line["step"] for line in evaluation.curve]
    errors = [2 * one["standard_error"] for one in whole]
    curve = Series("long model, whole row", steps, [one["accuracy"] for one in whole], errors)
    colour_of_before = Series("long_before", [], [evaluation.measured["long_before"].whole.accuracy], is_line=True)
    titles = ("step (optimizer updates)", "accuracy (%)")
    draw(path, "Recovery in training", titles, [*levels, colour_of_before, curve], ())
    return path
