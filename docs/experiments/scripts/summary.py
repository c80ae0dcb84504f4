"""Adds what a comparison found for one base model to docs/experiments/data/summary.json, a run for each of its arms.

    python docs/experiments/scripts/summary.py "bundled RoBERTa mini" en OUTPUT/compare/comparison.json

Each arm stands there at the values that served it best. A run of the same arm and number of steps is replaced; runs of
other comparisons stay beside it, so that no entry joins two. Accuracies are percent, means over the seeds;
`tokens_to_recovery` is null if a seed did not recover; entries without `base_chunks` count them to `base_cut`.
--evaluation names the evaluation.json of one run, on more rows.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation
from longmlm.compare.comparison import Arm, Comparison

SUMMARY = Path(__file__).parents[1] / "data" / "summary.json"
RATE = "pretrain.recipe.learning_rate"


def run_of(arm: Arm, num_steps: int, learning_rate: float) -> dict[str, Any]:
    """Returns what an arm reached; its own rate, if one was searched, takes the place of `learning_rate`."""
    trial = arm.trials[0]
    return {
        "arm": arm.name,
        "num_steps": num_steps,
        "learning_rate": arm.values.get(RATE, learning_rate),
        "seeds": [each.seed for each in arm.trials],
        "long_before": _rounded(arm.before),
        "long_after": _rounded(arm.after),
        "tokens_trained": trial.curve[-1].tokens,
        "tokens_to_recovery": arm.tokens_to_recovery(),
    }


def entry(known: dict[str, Any], comparison: Comparison, language: str, learning_rate: float) -> dict[str, Any]:
    """Returns a model's entry with the runs of the comparison in place of earlier ones of the same name."""
    points = comparison.arms()[0].trials[0].curve
    runs = [run_of(arm, arm.trials[0].curve[-1].step, learning_rate) for arm in comparison.arms()]
    names = {(run["arm"], run["num_steps"]) for run in runs}
    earlier = [run for run in known.get("runs", ()) if (run["arm"], run["num_steps"]) not in names]
    return known | {
        "language": language,
        "row_length": comparison.row_length,
        "base_cut": _rounded(points[0].base_cut),
        "base_chunks": _rounded(points[0].base_chunks),
        "tokens_between_evaluations": points[1].tokens - points[0].tokens,
        "runs": [*earlier, *runs],
    }


def _rounded(accuracy: float | None) -> float | None:
    return None if accuracy is None else round(accuracy, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("language")
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--learning-rate", type=float, required=True, help="of the arms that search none")
    parser.add_argument("--evaluation", nargs=2, metavar=("RUN", "FILE"))
    options = parser.parse_args()
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    comparison = artifact.read(Comparison, options.comparison)
    found = entry(summary.get(options.base, {}), comparison, options.language, options.learning_rate)
    if options.evaluation:
        name, path = options.evaluation
        evaluation = artifact.read(Evaluation, Path(path))
        accuracies = {view: _rounded(evaluation.accuracy(view)) for view in evaluation.measured}
        found["evaluation"] = {"run": name, "num_rows": evaluation.num_rows, **accuracies}
    summary[options.base] = found
    SUMMARY.write_text(f"{json.dumps(summary, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    print(json.dumps(found, indent=1, ensure_ascii=False))
