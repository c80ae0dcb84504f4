"""Writes an entry of docs/experiments/summary.json: what one comparison found for one base model.

    python docs/experiments/scripts/summary.py "bundled RoBERTa mini" en OUTPUT/compare/comparison.json --best fitted

`plain` is the arm with hierarchical positions, `best` the arm given by --best. Accuracies are percent, means over the
seeds; `base_windows` is null unless trials ran until evaluate, on the rows of that stage, or --evaluation names the
evaluation.json of a run of the best arm, whose accuracies, on more rows, are added as `evaluation`.
`tokens_to_recover_*` is null if a seed did not recover; all values of an arm are null if it was not run.
--plain-comparison names a comparison with more steps, in which the plain arm has recovered; its results are taken if
the first comparison has no such arm.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import get_args

from longmlm.artifacts import artifact
from longmlm.artifacts.evaluation import Evaluation, ViewName
from longmlm.compare.comparison import Arm, Comparison

VIEWS: tuple[ViewName, ...] = get_args(ViewName)
SUMMARY = Path(__file__).parents[1] / "summary.json"


def entry(comparison: Comparison, longer: Comparison, language: str, plain: str, best: str) -> dict[str, object]:
    """Returns what the comparison found, with both arms at the values that served them best.

    `longer` has the plain arm's recovery; it may be the same comparison.
    """
    arms, longer_arms = ({arm.name: arm for arm in found.arms()} for found in (comparison, longer))
    one, slow = arms[best], longer_arms.get(plain)
    found: dict[str, object] = {
        "language": language,
        "row_length": comparison.row_length,
        "base_cut": _rounded(one.trials[0].base_cut),
        "base_windows": _rounded(_measured(one, "base_windows")),
        "best_init": best,
    }
    other = arms.get(plain) or slow
    recovery = {
        "tokens_to_recover_best": one.tokens_to_recovery(),
        "tokens_to_recover_plain": slow and slow.tokens_to_recovery(),
    }
    return found | _results(one) | {f"{key}_plain": value for key, value in _results(other).items()} | recovery


def _results(arm: Arm | None) -> dict[str, object]:
    """Returns what an arm reached; nulls for an arm that was not run."""
    return {
        "values": arm and arm.values,
        "seeds": arm and [trial.seed for trial in arm.trials],
        "long_before": arm and _rounded(arm.before),
        "long_after": arm and _rounded(arm.after),
        "tokens_trained": arm and arm.trials[0].curve[-1].tokens,
    }


def _measured(arm: Arm, view: str) -> float | None:
    found = [
        measured.whole.accuracy for trial in arm.trials for name, measured in trial.measured.items() if name == view
    ]
    known = [accuracy for accuracy in found if accuracy is not None]
    return statistics.fmean(known) if known else None


def _rounded(accuracy: float | None) -> float | None:
    return None if accuracy is None else round(accuracy, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("language")
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--plain", default="hierarchical")
    parser.add_argument("--best", default="fitted")
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--plain-comparison", type=Path)
    options = parser.parse_args()
    summary = json.loads(SUMMARY.read_text(encoding="utf-8")) if SUMMARY.is_file() else {}
    found = artifact.read(Comparison, options.comparison)
    longer = artifact.read(Comparison, options.plain_comparison or options.comparison)
    summary[options.base] = entry(found, longer, options.language, options.plain, options.best)
    if options.evaluation:
        evaluation = artifact.read(Evaluation, options.evaluation)
        accuracies = {view: _rounded(evaluation.accuracy(view)) for view in VIEWS}
        summary[options.base] |= {"base_windows": accuracies["base_windows"], "evaluation": accuracies}
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary[options.base], indent=2))
