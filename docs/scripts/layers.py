"""The tables of experiment 12, and the figures in README and expectations, from its data file local-layers.json."""

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

from claims import interval

Data = dict[str, Any]
Signed = Callable[[float], str]
Z = 1.96  # of a 95 % interval
DEFAULT, MINILM_POSITIONS = "distilled: 3 layers, 300,000 tokens (default)", 1536
NAMES = {"minilm": "MiniLM", "roberta-mini": "mini"}
ARMS = {  # of the scripts and of compare/mini-local-layers.toml
    "base_chunks": "base model in chunks",
    "tile": "tiled",
    "distilled": "distilled: 300,000 tokens (default)",
    "local-2": "local layers: 2",
    "window": "local layers: 4 (all)",
}
START_HEAD = (
    "| model | positions | rows | arm | accuracy (loss) | difference from base_chunks |",
    "|---|---:|---:|---|---:|---:|",
)
DIFFERENCES = {
    "from base_chunks": "difference",
    "from the control": "control",
    "in chunks, from the control": "own_chunks",
    "far repeats": "far_repeats",
    "short texts, from base": "short_texts",
}
COLUMNS = ("model", "arm", "seeds", "before", "after", "tokens to recovery (M)", *DIFFERENCES)
TRAINED_HEAD = (f"| {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * (len(COLUMNS) - 2)}")


def start_cells(found: Iterable[Data], signed: Signed) -> list[list[str]]:
    """Returns a line for each model that was measured before training."""
    lines, seen = [], ("", 0)
    for one in (one for one in found if "after" not in one):
        same = (one["model"], one["positions"]) == seen
        seen = (one["model"], one["positions"])
        model = ["", "", ""] if same else [NAMES[one["model"]], f"{one['positions']:,}", str(one["num_rows"])]
        accuracy = f"{one['before']['accuracy']:.2f} ({one['before']['loss']:.3f})"
        gain = "" if one["arm"] == "base_chunks" else _with_interval([one["difference"]], signed)
        lines.append([*model, ARMS.get(one["arm"], one["arm"]), accuracy, gain])
    return lines


def trained_cells(found: Iterable[Data], signed: Signed) -> list[list[str]]:
    """Returns a line for each trained arm, with means over its seeds."""
    arms: dict[tuple[str, str], list[Data]] = {}
    for one in (one for one in found if "after" in one):
        arms.setdefault((one["model"], one["arm"]), []).append(one)
    lines = []
    for (model, arm), runs in arms.items():
        means = [f"{fmean(run[when]['accuracy'] for run in runs):.2f}" for when in ("before", "after")]
        gains = [_with_interval([run.get(key) for run in runs], signed) for key in DIFFERENCES.values()]
        lines.append([NAMES[model], ARMS.get(arm, arm), str(len(runs)), *means, _recovery(runs), *gains])
    return lines


def figures(found: Iterable[Data]) -> dict[str, list[str]]:
    """Returns by page the figures of MiniLM at 1536 positions that stand in its sentences."""
    arms = {one["arm"]: one for one in found if "after" not in one and one["positions"] == MINILM_POSITIONS}
    changes = [arms[name]["difference"] for name in (DEFAULT, "fitted")]
    lost = [f"{-change['points']:.2f} ± {change['standard_error']:.2f}" for change in changes]
    base, *kept = (f"{arms[name]['before']['accuracy']:.2f}" for name in ("base_chunks", DEFAULT, "fitted"))
    return {"README.md": lost, "expectations.md": [f"{kept[0]} of the {base} %", kept[1]]}


def _recovery(runs: list[Data]) -> str:
    reached = [run["tokens_to_recovery"] for run in runs if run["tokens_to_recovery"] is not None]
    if len(reached) == len(runs):
        return f"{fmean(reached) / 1e6:.2f}"
    return f"{len(reached)} of {len(runs)} seeds" if reached else "–"


def _with_interval(differences: list[Data | None], signed: Signed) -> str:
    """Returns the mean over seeds with its interval over rows, which all seeds share."""
    known = [one for one in differences if one]
    if len(known) < len(differences):
        return "–"
    points, margin = (fmean(one[key] for one in known) for key in ("points", "standard_error"))
    return interval({"points": points, "low": points - Z * margin, "high": points + Z * margin}, signed)
