"""Accuracy of trained models on whole rows, in chunks, on far repeats and on short texts.

    python docs/experiments/scripts/trained_layers.py --model MODEL --rows ROWS --num-positions 1536 --max-rows 32 \
        --runs fitted=RUN "distilled, 3 layers=RUN" --control RUN --output FOUND.json

Each run is an object in the output, with differences paired by row; set `--max-rows` as in the run. `control` is the
base model, trained on as many tokens at its own length and read in chunks; far repeats are masked tokens that occur
again only outside their chunk.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runs import BaseModel, add_to, base_model_parser

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import row_difference
from longmlm.artifacts.metrics import MetricsFile
from longmlm.artifacts.provenance import Extension
from longmlm.compare.comparison import Comparison, MeasuredTrial
from longmlm.evaluation.frozen import RowView, viewer_of
from longmlm.evaluation.measure import Subject, tallies
from longmlm.evaluation.tally import Tally
from longmlm.model.loading import LoadedModel, load_trained
from longmlm.model.mlm import MlmObjective
from longmlm.runtime.launch import resolved_precision
from longmlm.training.run_folder import model_or_best_checkpoint

SAME = ("model", "positions", "arm", "seed")
VIEWS: tuple[RowView, ...] = ("whole", "chunks", "cut")


def views_of(loaded: LoadedModel, base: BaseModel, views: tuple[RowView, ...]) -> dict[RowView, Tally]:
    """Returns what the model predicts in each view of the held-out rows."""
    objective = MlmObjective(loaded.model, resolved_precision("auto"))
    viewers = {name: viewer_of(name, base.num_positions, base.frozen.special) for name in views}
    subjects = {name: Subject(objective, viewer) for name, viewer in viewers.items()}
    return tallies(subjects, base.frozen, base.num_positions, None)


def difference(first: Tally, second: Tally) -> dict[str, float] | None:
    """Returns first - second in points, paired by row, with its standard error."""
    found = row_difference(first.measured, second.measured)
    return None if found is None else asdict(found)


def record(trial: MeasuredTrial, options: argparse.Namespace) -> dict[str, Any]:
    """Returns what a trial measured on whole rows; its tokens include the distillation."""
    before, after, recovery = trial.before.whole, trial.after.whole, trial.curve[-1].recovery
    return {
        "model": options.name or options.model,
        "positions": options.num_positions,
        "arm": trial.arm,
        "seed": trial.seed,
        "num_rows": len(trial.after.selected),
        "base_chunks": {"accuracy": trial.base_chunks},
        "before": {"accuracy": before.accuracy, "loss": before.loss},
        "after": {"accuracy": after.accuracy, "loss": after.loss},
        "difference": recovery and asdict(recovery),
        "curve": [{"tokens": line.tokens, "accuracy": line.held_out.whole.accuracy} for line in trial.curve],
        "tokens_to_recovery": trial.tokens_to_recovery(),
    }


def trial_of(name: str, run: Path, extension: Extension | None, seed: int) -> MeasuredTrial:
    """Returns a run as a trial of a comparison."""
    tokens = extension.distilled.tokens if extension and extension.distilled else 0
    curve = tuple(replace(line, tokens=tokens + line.tokens) for line in MetricsFile(run).evaluations())
    return MeasuredTrial(arm=name, seed=seed, curve=curve)


def report(options: argparse.Namespace) -> None:
    """Measures every run and prints a line for each."""
    if options.comparison:
        comparison = artifact.read(Comparison, options.comparison)
        trials = (trial for trial in comparison.trials if trial.arm != comparison.control)
        add_to(options.output, [record(trial, options) for trial in trials], SAME)
        return
    base, found = BaseModel.of(options), []
    before = views_of(base.loaded, base, ("chunks", "cut"))
    own = load_trained(model_or_best_checkpoint(options.control)) if options.control else None
    control = views_of(own, base, ("chunks",))["chunks"] if own else None
    for name, folder in (one.split("=", 1) for one in options.runs):
        loaded = load_trained(model_or_best_checkpoint(folder))
        extension, trained = loaded.provenance.extension, views_of(loaded, base, VIEWS)
        far = trained["whole"].gains_over(trained["chunks"])["occurrence"]["row"]
        is_local = extension is not None and extension.attention is not None
        found.append(
            record(trial_of(name, Path(folder), extension, options.seed), options)
            | {
                "release_class": "LongformerForMaskedLM" if is_local else type(loaded.model).__name__,
                "far_repeats": far and asdict(far),
                "own_chunks": control and difference(trained["chunks"], control),
                "short_texts": difference(trained["cut"], before["cut"]),
                "control": control and difference(trained["whole"], control),
            }
        )
        print(json.dumps({key: value for key, value in found[-1].items() if key != "curve"}), flush=True)
    add_to(options.output, found, SAME)


if __name__ == "__main__":
    parser = base_model_parser(__doc__)
    parser.add_argument("--name", help="model name in the output")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--runs", nargs="*", default=[], metavar="NAME=RUN")
    parser.add_argument("--comparison", type=Path, help="comparison.json, whose trials are added instead")
    parser.add_argument("--control", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True)
    report(parser.parse_args())
