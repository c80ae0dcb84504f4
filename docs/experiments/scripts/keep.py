"""Keeps the figures of a run in docs/experiments/data/NAME.json: its evaluation, and its accuracies during training.

    python docs/experiments/scripts/keep.py NAME "COMMAND" EVALUATION_JSON [METRICS_JSONL] [--distillation-tokens N]

What docs/scripts/figures.py does not need is left out: single positions and filled masks.
"""

import argparse
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
KEPT = ("longmlm", "commit", "row_length", "base_positions", "num_rows", "precision")
OF_A_VIEW = ("whole", "blocks", "selected", "correct")
OF_THE_BASE_MODEL = ("base_chunks", "base_chunks_error", "base_cut", "base_cut_error")


def kept(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Returns what was measured, on which rows; `selected` and `correct` count tokens by row."""
    measured = {name: {key: view[key] for key in OF_A_VIEW} for name, view in evaluation["measured"].items()}
    held_out = evaluation["recipe"]["held_out"]
    return {key: evaluation[key] for key in KEPT} | {"held_out": held_out, "measured": measured}


def curve(lines: list[str]) -> list[dict[str, Any]]:
    """Returns step, tokens, accuracy and those of the base model for each evaluation during training."""
    found = [one for one in map(json.loads, lines) if one["kind"] == "evaluation"]
    return [
        {key: one[key] for key in ("step", "tokens", *OF_THE_BASE_MODEL)} | {"whole": one["held_out"]["whole"]}
        for one in found
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("command")
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("metrics", type=Path, nargs="?")
    parser.add_argument("--distillation-tokens", type=int, default=0)
    options = parser.parse_args()
    about = {"command": options.command, "distillation_tokens": options.distillation_tokens}
    found = {**about, **kept(json.loads(options.evaluation.read_text(encoding="utf-8")))}
    if options.metrics:
        found["curve"] = curve(options.metrics.read_text(encoding="utf-8").splitlines())
    (DATA / f"{options.name}.json").write_text(f"{json.dumps(found)}\n", encoding="utf-8")
