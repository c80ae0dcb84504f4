"""Writes an entry of docs/experiments/summary.json: what one comparison found for one base model.

    python docs/experiments/scripts/summary.py "bundled RoBERTa mini" en OUTPUT/compare/comparison.json --best fitted

`plain` is the arm with hierarchical positions, `best` the arm given by --best. Accuracies are percent, means over the
seeds; `base_windows` is null unless trials ran until evaluate. Tokens to recovery are null if a seed did not recover.
"""

import argparse
import json
import statistics
from pathlib import Path

from longmlm.artifacts import artifact
from longmlm.artifacts.comparison import Arm, Comparison

SUMMARY = Path(__file__).parents[1] / "summary.json"


def entry(comparison: Comparison, language: str, plain: str, best: str) -> dict[str, object]:
    """Returns what the comparison found, with both arms at the values that served them best."""
    arms = {arm.name: arm for arm in comparison.arms()}
    one, other = arms[best], arms[plain]
    cut = one.trials[0].base_cut
    return {
        "language": language,
        "row_length": comparison.row_length,
        "seeds": [trial.seed for trial in one.trials],
        "base_cut": _rounded(cut),
        "base_windows": _rounded(_measured(one, "base_windows")),
        "best_init": best,
        "best_values": one.values,
        "long_before": _rounded(one.before),
        "long_after": _rounded(one.after),
        "plain_values": other.values,
        "long_before_plain": _rounded(other.before),
        "long_after_plain": _rounded(other.after),
        "tokens_to_recover_best": one.tokens_to_recovery(),
        "tokens_to_recover_plain": other.tokens_to_recovery(),
        "tokens_trained": one.trials[0].curve[-1].tokens,
        "tokens_trained_plain": other.trials[0].curve[-1].tokens,
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
    options = parser.parse_args()
    summary = json.loads(SUMMARY.read_text(encoding="utf-8")) if SUMMARY.is_file() else {}
    found = artifact.read(Comparison, options.comparison)
    summary[options.base] = entry(found, options.language, options.plain, options.best)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary[options.base], indent=2))
