"""Measurements to evaluation.json, a table, two pictures and a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longmlm.evaluation.held_out import FrozenRows, Measured
from longmlm.folders import write_json
from longmlm.pages import Section, Series, Table, draw, page

NAMES = ("base_cut", "base_windows", "long_before", "long_after")
EXPLAINED = {
    "base_cut": "base model, the start of the row, cut to its length",
    "base_windows": "base model, the whole row in windows of its length",
    "long_before": "long model before training, whole row",
    "long_after": "long model after training, whole row",
}


def as_json(
    measured: Mapping[str, Measured], frozen: FrozenRows, block: int, sources: Mapping[str, str], curve: Sequence[Any]
) -> dict[str, Any]:
    """Returns the content of evaluation.json, `gains` in percent points.

    `block` is the base model's length, `sources` tells where models and rows lie, `curve` are the run's evaluations.
    """
    gains = {}
    if after := measured.get("long_after"):
        gains = {
            "recovered": after.whole.accuracy >= measured["base_cut"].whole.accuracy,
            "context": _without_nan(after.whole.accuracy - measured["base_windows"].whole.accuracy),
        }
    return {
        "row_length": frozen.rows.row_length,
        "block": block,
        "num_rows": len(frozen.row_ids),
        "mask_seed": frozen.config.mask_seed,
        "sources": dict(sources),
        "measured": {name: _without_nan(asdict(one)) for name, one in measured.items()},
        "gains": gains,
        "curve": list(curve),
    }


def write_evaluation(evaluation: Mapping[str, Any], folder: Path) -> None:
    """Writes blocks.png, recovery.png where there is a curve, index.html and, last, evaluation.json into `folder`.

    An earlier result there is removed first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("evaluation.json", "index.html", "recovery.png", "blocks.png"):
        (folder / name).unlink(missing_ok=True)
    sections = [
        Section("Accuracy", explanation(evaluation), cells(evaluation)),
        Section("By block of positions", "Bars are two standard errors.", _draw_blocks(evaluation, folder)),
    ]
    if evaluation["curve"]:
        text = (
            "Held-out accuracy on whole rows while the long model is trained, and the base model's on the same rows, "
            "cut to its length."
        )
        sections.append(Section("Recovery", text, _draw_curve(evaluation, folder)))
    lead = f"{evaluation['num_rows']:,} held-out rows of {evaluation['row_length']} tokens, one frozen mask each."
    (folder / "index.html").write_text(page("Masked-token accuracy", lead, sections), encoding="utf-8")
    write_json(folder / "evaluation.json", evaluation)


def _without_nan(value: Any) -> Any:
    """Returns the value with None for what was not measured, which JSON cannot say otherwise."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def cells(evaluation: Mapping[str, Any]) -> Table:
    """Returns, of evaluation.json, a line for whole rows and one a block: percent with standard errors."""
    measured = evaluation["measured"]
    names = [name for name in NAMES if name in measured]
    lines = [["whole row", *(_cell(measured[name]["whole"]) for name in names)]]
    for number, place in enumerate(block_names(evaluation)):
        lines.append([place, *(_cell(measured[name]["blocks"][number]) for name in names)])
    return Table(["accuracy in %", *names], lines)


def block_names(evaluation: Mapping[str, Any]) -> list[str]:
    """Returns the positions of each block, such as 0–127."""
    block, row_length = evaluation["block"], evaluation["row_length"]
    return [f"{first}–{min(first + block, row_length) - 1}" for first in range(0, row_length, block)]


def explanation(evaluation: Mapping[str, Any]) -> str:
    """Returns what the table's columns are, in a sentence."""
    measured = evaluation["measured"]
    explained = "; ".join(f"{name}: {EXPLAINED[name]}" for name in NAMES if name in measured)
    count = measured["long_before"]["whole"]["num_selected"]
    return f"Percent of {count:,} selected tokens told right, ± one standard error. {explained}."


def _cell(accuracy: Mapping[str, Any]) -> str:
    return f"{accuracy['accuracy']:.2f} ± {accuracy['standard_error']:.2f}" if accuracy["num_selected"] else "–"


def _draw_blocks(evaluation: Mapping[str, Any], folder: Path) -> Path:
    path = folder / "blocks.png"
    series = []
    for name in (name for name in NAMES if name in evaluation["measured"]):
        every = enumerate(evaluation["measured"][name]["blocks"])
        if blocks := [(place, block) for place, block in every if block["num_selected"]]:
            values = [block["accuracy"] for _, block in blocks]
            errors = [2 * block["standard_error"] for _, block in blocks]
            series.append(Series(name, [float(place) for place, _ in blocks], values, errors))
    titles = ("position in the row", "accuracy (%)")
    draw(path, "Accuracy by block of positions", titles, series, block_names(evaluation))
    return path


def _draw_curve(evaluation: Mapping[str, Any], folder: Path) -> Path:
    path = folder / "recovery.png"
    curve = evaluation["curve"]
    points = [line["held_out"]["whole"] for line in curve]
    values = [point["accuracy"] for point in points]
    errors = [2 * point["standard_error"] for point in points]
    series = [Series("long model, whole row", [float(line["step"]) for line in curve], values, errors)]
    if (base_cut := curve[-1]["base_cut"]) is not None:
        series = [Series("base_cut", [], [base_cut]), *series]
    draw(path, "Recovery in training", ("step (optimizer updates)", "accuracy (%)"), series, ())
    return path
