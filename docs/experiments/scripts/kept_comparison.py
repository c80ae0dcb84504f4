"""Keeps what a comparison measured in docs/experiments/data/NAME.json, with the intervals of all differences.

    python docs/experiments/scripts/kept_comparison.py bert-masks out/bert-masks/compare/comparison.json

Arms that pack text in other ways have other held-out rows. With --rows, their models, which keep_weights left, are
measured on the same rows as the others; those trained on the rows of --pairs also on pairs of both kinds:

    python docs/experiments/scripts/kept_comparison.py bert-formats out/bert-formats/compare/comparison.json \
        --rows out/bert-formats/rows --pairs out/bert-formats/compare/rows-1234abcd

A 95 % interval is the difference that `longmlm compare` shows, plus and minus its standard error times the quantile of
Student's t with the degrees of freedom of the probability beside it. It is not corrected for the number of intervals.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import Difference, PairAccuracy, paired_difference
from longmlm.compare.comparison import Arm, Comparison, MeasuredTrial, accuracy_of, student_cdf
from longmlm.data.rows import Rows, open_named_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows, whole
from longmlm.evaluation.measure import measure, measure_pairs
from longmlm.experiments.experiment import Trial
from longmlm.model.loading import load_trained
from longmlm.model.mlm import MlmObjective
from longmlm.settings.masking import HeldOut, PairKind
from longmlm.training.run_folder import model_or_best_checkpoint

DATA = Path(__file__).parents[1] / "data"
KINDS: tuple[PairKind, ...] = ("nsp", "sop")
CONFIDENCE = 0.95
ROWS_PER_BATCH = 32


@dataclass(frozen=True, slots=True)
class CommonRows:
    """Held-out rows on which all arms are measured, and rows of pairs for the arms that were trained on such rows."""

    rows: Rows
    pairs: Rows | None
    held_out: HeldOut

    def measured(self, folder: Path, trial: MeasuredTrial) -> tuple[MeasuredTrial, dict[PairKind, PairAccuracy]]:
        """Returns a trial with the accuracy of its model on the common rows, and that on pairs of each kind.

        The accuracy of a trial that was evaluated on the common rows is not measured again.
        """
        common = replace(trial, rows_sha256=self.rows.sha256, held_out=self.held_out)
        has_pairs = self.pairs is not None and trial.rows_sha256 == self.pairs.sha256
        if trial.has_rows_of(common) and not has_pairs:
            return trial, {}
        run = Trial(arm=trial.arm, values=trial.values, seed=trial.seed).folder_in(folder) / "run"
        loaded = load_trained(name := model_or_best_checkpoint(str(run)))
        objective, vocabulary = MlmObjective(loaded.model), vocabulary_of_pretrained(loaded.tokenizer, name)

        def frozen(rows: Rows, kind: PairKind | None) -> FrozenRows:
            return FrozenRows(rows, self.held_out, vocabulary.maskable, vocabulary.special, ROWS_PER_BATCH, kind)

        if not trial.has_rows_of(common):
            held_out = measure(objective, frozen(self.rows, None), whole, self.rows.row_length, None)
            common = replace(common, curve=(*trial.curve[:-1], replace(trial.curve[-1], held_out=held_out)))
        if self.pairs is None or not has_pairs or not loaded.provenance.pairs:
            return common, {}
        found = {kind: measure_pairs(objective, frozen(self.pairs, kind), None) for kind in KINDS}
        return common, {kind: accuracy for kind, accuracy in found.items() if accuracy}


def kept(comparison: Comparison) -> dict[str, Any]:
    """Returns the accuracies of all trials, the counts by row of each arm with its best values, and all differences."""
    arms = comparison.arms()
    first = comparison.trials[0]
    return {
        "longmlm": comparison.longmlm,
        "commit": first.curve[0].commit,
        "row_length": comparison.row_length,
        "held_out": asdict(first.held_out),
        "base_cut": first.curve[0].base_cut,
        "before": accuracy_of(first.before),
        "trials": [
            {"arm": trial.arm, "seed": trial.seed, "values": trial.values, "tokens": trial.curve[-1].tokens}
            | {"accuracy": accuracy_of(trial.after)}
            for trial in comparison.trials
        ],
        "selected": first.after.selected,
        "correct": {arm.name: {trial.seed: trial.after.correct for trial in arm.trials} for arm in arms},
        "differences": [difference(*pair) for pair in itertools.permutations(arms, 2)],
    }


def difference(arm: Arm, other: Arm) -> dict[str, Any]:
    """Returns the accuracy of one arm minus that of the other in points, with standard error and interval."""
    pairs = arm.pairs_with(other)
    gain = arm.gain_over(other)
    on_rows = paired_difference([mine.after for mine, _ in pairs], [its.after for _, its in pairs])
    if gain is None or on_rows is None:
        raise SystemExit(f"{arm.name} and {other.name} were measured on other rows: set --rows")
    found = {"arm": arm.name, "other": other.name, "seeds": len(pairs), **asdict(gain)}
    if len(pairs) == 1:
        return found
    return found | interval(gain, on_rows.standard_error, len(pairs))


def of_pairs(by_seed: Mapping[int, PairAccuracy]) -> dict[str, Any]:
    """Returns the mean accuracy on pairs minus that of the more frequent label, as `difference` does.

    All seeds have the same pairs, so the error over pairs is that of one seed.
    """
    accuracies, first = [one.accuracy for one in by_seed.values()], next(iter(by_seed.values()))
    on_pairs = statistics.fmean(one.standard_error for one in by_seed.values())
    training = math.sqrt(statistics.variance(accuracies) / len(accuracies)) if len(accuracies) > 1 else 0.0
    gain = Difference(statistics.fmean(accuracies) - first.larger_share, math.hypot(on_pairs, training))
    found = {"num_pairs": first.num_pairs, "larger_share": first.larger_share, "seeds": len(accuracies)}
    found |= {"accuracies": {seed: one.accuracy for seed, one in by_seed.items()}, **asdict(gain)}
    return found | (interval(gain, on_pairs, len(accuracies)) if len(accuracies) > 1 else {})


def interval(gain: Difference, error_of_rows: float, num_seeds: int) -> dict[str, float]:
    """Returns the ends of the 95 % interval; what is not the error of rows is known from the spread of the seeds."""
    training = math.sqrt(max(gain.standard_error**2 - error_of_rows**2, 0.0))
    half = quantile((num_seeds - 1) * (gain.standard_error / training) ** 4 if training else math.inf)
    return {"low": gain.points - half * gain.standard_error, "high": gain.points + half * gain.standard_error}


def quantile(freedom: float) -> float:
    """Returns the value that Student's t exceeds with 2.5 %, by bisection."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < (1 + CONFIDENCE) / 2 else (low, middle)
    return high


def measured_again(comparison: Comparison, folder: Path, common: CommonRows) -> tuple[Comparison, dict[str, Any]]:
    """Returns the comparison on the common rows, and by arm and kind the accuracies on pairs."""
    found = [common.measured(folder, trial) for trial in comparison.trials]
    by_arm: dict[str, dict[PairKind, dict[int, PairAccuracy]]] = {}
    for trial, pairs in found:
        for kind, accuracy in pairs.items():
            by_arm.setdefault(trial.arm, {}).setdefault(kind, {})[trial.seed] = accuracy
    of_arms = {arm: {kind: of_pairs(seeds) for kind, seeds in kinds.items()} for arm, kinds in by_arm.items()}
    return replace(comparison, trials=tuple(trial for trial, _ in found)), of_arms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--rows", help="the rows on which all arms are measured again")
    parser.add_argument("--pairs", help="rows with pairs")
    options = parser.parse_args()
    compared, pairs = artifact.read(Comparison, options.comparison), {}
    if options.rows:
        rows_of_pairs = open_named_rows(options.pairs, "held_out") if options.pairs else None
        common = CommonRows(open_named_rows(options.rows, "held_out"), rows_of_pairs, compared.trials[0].held_out)
        compared, pairs = measured_again(compared, options.comparison.parent, common)
    found = kept(compared) | ({"pairs": pairs} if pairs else {})
    (DATA / f"{options.name}.json").write_text(f"{json.dumps(found)}\n", encoding="utf-8")
    print(json.dumps(found["differences"], indent=1), json.dumps(pairs, indent=1), sep="\n")
