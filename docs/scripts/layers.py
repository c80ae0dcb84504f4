"""The tables of experiment 12, from docs/experiments/data/local-layers.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

Data = dict[str, Any]
FOUND = Path(__file__).parents[1] / "experiments" / "data" / "local-layers.json"
DEFAULT, MINILM_POSITIONS = "distilled: 3 layers, 300,000 tokens (default)", 1536
Z = 1.96  # of a 95 % interval
NAMES = {"minilm": "MiniLM", "roberta-mini": "mini", "bert-mini-zh": "Chinese mini"}
MEASURED = {
    "far repeats": "far_repeats",
    "in chunks, from control": "own_chunks",
    "short texts, from base": "short_texts",
}
START_HEAD = (
    "| model | positions | rows | arm | accuracy (loss) | difference from base_chunks |",
    "|---|---:|---:|---|---:|---:|",
)
COLUMNS = (
    "model",
    "arm",
    "seeds",
    "before",
    "after",
    "difference from base_chunks",
    "tokens to recovery (M)",
    *MEASURED,
)
TRAINED_HEAD = (f"| {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * (len(COLUMNS) - 2)}")


def start_cells(found: Iterable[Data]) -> list[list[str]]:
    """Returns a line for each model that was measured before training."""
    lines, seen = [], ("", 0)
    for one in (one for one in found if "after" not in one):
        model, positions = one["model"], one["positions"]
        first = (model, positions) != seen
        seen = (model, positions)
        own = [NAMES[model], f"{positions:,}", str(one["num_rows"])] if first else ["", "", ""]
        gain = "" if one["arm"] == "base_chunks" else _interval(one["difference"])
        lines.append(
            [*own, ARMS.get(one["arm"], one["arm"]), f"{_accuracy(one['before'])} ({one['before']['loss']:.3f})", gain]
        )
    return lines


def trained_cells(found: Iterable[Data]) -> list[list[str]]:
    """Returns a line for each trained arm, with means over its seeds."""
    arms: dict[tuple[str, str], list[Data]] = {}
    for one in (one for one in found if "after" in one):
        arms.setdefault((one["model"], one["arm"]), []).append(one)
    lines = []
    for (model, arm), runs in arms.items():
        tokens = [run["tokens_to_recovery"] for run in runs]
        reached = [count for count in tokens if count is not None]
        recovery = (
            f"{fmean(reached) / 1e6:.2f}" if len(reached) == len(runs) else f"{len(reached)} of {len(runs)} seeds"
        )
        means = [f"{fmean(run[when]['accuracy'] for run in runs):.2f}" for when in ("before", "after")]
        gains = [
            _interval(_mean([run.get(key) for run in runs])) for key in ("far_repeats", "own_chunks", "short_texts")
        ]
        gain = _interval(_mean([run["difference"] for run in runs]))
        lines.append([NAMES[model], arm, str(len(runs)), *means, gain, recovery if reached else "–", *gains])
    return lines


ARMS = {"base_chunks": "base model in chunks", "tile": "tiled"}


def _mean(differences: list[Data | None]) -> Data | None:
    """Returns the mean over seeds, of the standard errors too, since all seeds share the rows."""
    known = [one for one in differences if one]
    if len(known) < len(differences):
        return None
    return {key: fmean(one[key] for one in known) for key in ("points", "standard_error")}


def _accuracy(measured: Data) -> str:
    return f"{measured['accuracy']:.2f}"


def _interval(gain: Data | None) -> str:
    if gain is None:
        return "–"
    margin = Z * gain["standard_error"]
    return f"{signed(gain['points'])} [{signed(gain['points'] - margin)}, {signed(gain['points'] + margin)}]"


def signed(points: float) -> str:
    """Returns points with their sign."""
    return f"{points:+.2f}".replace("-", "−")


def _table(head: tuple[str, ...], cells: list[list[str]]) -> list[str]:
    return [*head, *(f"| {' | '.join(row)} |" for row in cells)]


def _found() -> list[Data]:
    return json.loads(FOUND.read_text(encoding="utf-8"))


def named() -> dict[str, list[str]]:
    """Returns by page the figures of MiniLM at 1536 positions that stand in its sentences."""
    found = {one["arm"]: one for one in _found() if "after" not in one and one["positions"] == MINILM_POSITIONS}
    distilled, fitted = found[DEFAULT], found["fitted"]
    lost = [
        f"{-one['difference']['points']:.2f} ± {one['difference']['standard_error']:.2f}" for one in (distilled, fitted)
    ]
    base, *kept = (f"{one['before']['accuracy']:.2f}" for one in (found["base_chunks"], distilled, fitted))
    return {"README.md": lost, "expectations.md": [f"{kept[0]} of the {base} %", kept[1]]}


TABLES = {
    "start": lambda: _table(START_HEAD, start_cells(_found())),
    "trained": lambda: _table(TRAINED_HEAD, trained_cells(_found())),
}
