"""Measurements to evaluation.json, a table, pictures and a page."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longmlm.evaluation.examples import FilledMask
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import Measured, bin_starts
from longmlm.folders import write_json
from longmlm.reports.charts import Chart, Colour, Series, write_png
from longmlm.reports.pages import Head, Passage, Section, Tile, page, write_page
from longmlm.reports.tables import Table

NAMES = ("base_cut", "base_windows", "long_before", "long_after", "long_after_cut")
EXPLAINED = {
    "base_cut": "base model, the start of the row, cut to its length",
    "base_windows": "base model, the whole row in windows of its length",
    "long_before": "long model before training, whole row",
    "long_after": "long model after training, whole row",
    "long_after_cut": "long model after training on what base_cut sees: what it has kept on short texts",
}
DRAWN: dict[str, Colour] = {"base_cut": "ink", "base_windows": "amber", "long_before": "pale", "long_after": "blue"}
EVALUATION = "evaluation.json"
PICTURES = ("blocks.png", "recovery.png")


def as_json(
    measured: Mapping[str, Measured],
    frozen: FrozenRows,
    block: int,
    sources: Mapping[str, str],
    curve: Sequence[Any],
    examples: Sequence[FilledMask],
) -> dict[str, Any]:
    """Returns the content of evaluation.json, `gains` in percent points.

    `block` is the base model's length, `sources` tells where models and rows lie, `curve` are the run's evaluations,
    `examples` are filled in by long_after, or by long_before where there is no other.
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
        "position_starts": bin_starts(block, frozen.rows.row_length),
        "num_rows": len(frozen.row_ids),
        "mask_seed": frozen.config.mask_seed,
        "held_out": asdict(frozen.config),
        "sources": dict(sources),
        "measured": {name: _without_nan(asdict(one)) for name, one in measured.items()},
        "gains": gains,
        "curve": _without_nan(list(curve)),
        "examples": [asdict(example) for example in examples],
    }


def write_evaluation(evaluation: Mapping[str, Any], folder: Path, made_by: str) -> None:
    """Writes the pictures, index.html and, last, evaluation.json into `folder`; `made_by` stands at the page's foot.

    An earlier result there is removed first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (EVALUATION, "index.html", *PICTURES):
        (folder / name).unlink(missing_ok=True)
    charts = {"blocks.png": _blocks(evaluation)}
    text = (
        "Bars are two standard errors. The base model reads the first block; in windows it reads the others too, but "
        "not what came before them."
    )
    sections = [
        Section("Accuracy", _counted_in_words(evaluation), cells(evaluation)),
        Section("What the columns are", "", _explained(evaluation)),
        Section("By block of positions", text, charts["blocks.png"]),
        Section("By position", "The same, finer. Shades are two standard errors.", _positions(evaluation)),
    ]
    if evaluation["curve"]:
        charts["recovery.png"] = recovery = _recovery(evaluation)
        sections.append(Section("Recovery in training", _recovery_in_words(evaluation), recovery))
    if evaluation["examples"]:
        sections.append(
            Section("Masks near the end of a long row", _examples_in_words(evaluation), _passages(evaluation))
        )
    sections.append(Section("What was read", "", {**evaluation["sources"], "mask seed": str(evaluation["mask_seed"])}))
    for name, chart in charts.items():
        write_png(chart, folder / name)
    write_page(page(_head(evaluation), sections, made_by), folder / "index.html")
    write_json(folder / EVALUATION, {**evaluation, "sha256": content_sha256(evaluation)})


def content_sha256(evaluation: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of all that evaluation.json says besides it."""
    content = {key: value for key, value in evaluation.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    explained = "; ".join(f"{name}: {what}" for name, what in _explained(evaluation).items())
    return f"{_counted_in_words(evaluation)} {explained}."


def _explained(evaluation: Mapping[str, Any]) -> dict[str, str]:
    return {name: EXPLAINED[name] for name in NAMES if name in evaluation["measured"]}


def _counted_in_words(evaluation: Mapping[str, Any]) -> str:
    count = evaluation["measured"]["long_before"]["whole"]["num_selected"]
    return f"Percent of {count:,} selected tokens told right, ± one standard error."


def _cell(accuracy: Mapping[str, Any]) -> str:
    return f"{accuracy['accuracy']:.2f} ± {accuracy['standard_error']:.2f}" if accuracy["num_selected"] else "–"


def _head(evaluation: Mapping[str, Any]) -> Head:
    measured, block, row_length = evaluation["measured"], evaluation["block"], evaluation["row_length"]
    base = evaluation["sources"]["base"].rstrip("/").rsplit("/", 1)[-1]
    names = {
        "long_after": "long model after training, whole rows",
        "base_cut": "base model, rows cut to its length",
        "base_windows": "base model, rows in windows",
        "long_before": "long model before training, whole rows",
    }
    tiles = [_tile(name, measured[key]["whole"]) for key, name in names.items() if key in measured]
    if (context := evaluation["gains"].get("context")) is not None:
        tiles.append(Tile("what the longer context is worth", f"{context:+.2f}".replace("-", "−"), "points"))
    return Head(
        f"{base}: from {block:,} to {row_length:,} positions",
        f"How many masked tokens are told right, on {evaluation['num_rows']:,} held-out rows of {row_length:,} tokens, "
        "each with one mask that is the same for every model.",
        *_finding(evaluation),
        tiles,
    )


def _tile(name: str, accuracy: Mapping[str, Any]) -> Tile:
    if not accuracy["num_selected"]:
        return Tile(name, "–")
    return Tile(name, f"{accuracy['accuracy']:.2f} %", f"± {accuracy['standard_error']:.2f}")


def _finding(evaluation: Mapping[str, Any]) -> tuple[str, bool | None]:
    measured, row_length = evaluation["measured"], evaluation["row_length"]
    if "long_after" not in measured:
        return "Not trained yet: this is what stretching alone gives.", None
    after, base = (measured[name]["whole"]["accuracy"] for name in ("long_after", "base_cut"))
    told = (
        f"on whole rows of {row_length:,} tokens the long model tells {after:.2f} %, the base model {base:.2f} % on "
        f"their first {evaluation['block']:,}"
    )
    if evaluation["gains"]["recovered"]:
        return f"Recovered: {told}.", True
    return f"Not recovered: {told}; {base - after:.2f} points are missing.", False


def _series(evaluation: Mapping[str, Any], kind: str, places: Sequence[float]) -> list[Series]:
    """Returns, of every model that is drawn, the accuracies at the places where there were tokens to tell."""
    series = []
    for name in (name for name in DRAWN if name in evaluation["measured"]):
        told = zip(places, evaluation["measured"][name][kind], strict=True)
        if here := [(place, one) for place, one in told if one["num_selected"]]:
            values = [one["accuracy"] for _, one in here]
            errors = [2 * one["standard_error"] for _, one in here]
            series.append(Series(name, DRAWN[name], [place for place, _ in here], values, errors))
    return series


def _blocks(evaluation: Mapping[str, Any]) -> Chart:
    names = block_names(evaluation)
    series = _series(evaluation, "blocks", [float(place) for place in range(len(names))])
    titles = ("positions in the row (tokens)", "accuracy (%)")
    return Chart("Accuracy by block of positions", titles, series, "points", names)


def _positions(evaluation: Mapping[str, Any]) -> Chart:
    starts, block = evaluation["position_starts"], evaluation["block"]
    ends = [*starts[1:], evaluation["row_length"]]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    titles = ("position in the row (tokens)", "accuracy (%)")
    border = (float(block), "end of the base model")
    return Chart("Accuracy by position", titles, _series(evaluation, "positions", middles), border=border)


def _recovery(evaluation: Mapping[str, Any]) -> Chart:
    curve = evaluation["curve"]
    points = [line["held_out"]["whole"] for line in curve]
    values = [point["accuracy"] for point in points]
    errors = [2 * point["standard_error"] for point in points]
    series = [Series("long model, whole row", "blue", [float(line["step"]) for line in curve], values, errors)]
    if (windows := evaluation["measured"]["base_windows"]["whole"]["accuracy"]) is not None:
        series = [Series("base_windows", "amber", [], [windows]), *series]
    if (base_cut := curve[-1]["base_cut"]) is not None:
        series = [Series("base_cut", "ink", [], [base_cut]), *series]
    return Chart("Recovery in training", ("step (optimizer updates)", "held-out accuracy (%)"), series)


def _recovery_in_words(evaluation: Mapping[str, Any]) -> str:
    last = evaluation["curve"][-1]
    when = ""
    if (step := last.get("recovered_at_step")) is not None:
        when = f" The base model's accuracy was back at step {step:,}, after {last['recovered_at_tokens']:,} tokens."
    return (
        "Accuracy on whole held-out rows while the long model is trained; the shade is two standard errors. Lines "
        f"across are the base model's: base_cut as the run measured it on its rows, base_windows as in the table.{when}"
    )


def _examples_in_words(evaluation: Mapping[str, Any]) -> str:
    measured, count = evaluation["measured"], len(evaluation["examples"])
    name = "long_after" if "long_after" in measured else "long_before"
    return (
        f"The last masked token of {count} rows spread over the held-out side, not picked, as {name} fills it in. "
        "It read the whole row, in which other tokens were hidden as well; the marked one is what stood there."
    )


def _passages(evaluation: Mapping[str, Any]) -> list[Passage]:
    return [
        Passage(
            f"row {one['row_id']:,}, position {one['place']:,} of {evaluation['row_length']:,}",
            one["before"],
            one["truth"],
            one["after"],
            one["guesses"],
        )
        for one in evaluation["examples"]
    ]
