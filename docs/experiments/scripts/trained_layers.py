"""Accuracy of trained models on whole rows, in chunks, on far repeats and on short texts.

    python docs/experiments/scripts/trained_layers.py --model MODEL --rows ROWS --num-positions 1536 --max-rows 40 \
        --runs fitted=RUN "distilled, 3 layers=RUN" --control RUN --output FOUND.json

Each run is an object in the output, with differences paired by row; set `--max-rows` as in the run. `control` is the
base model, trained on as many tokens at its own length and read in chunks; far repeats are masked tokens that occur
again only outside their chunk.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runs import BaseModel, base_model_parser

from longmlm.artifacts import artifact
from longmlm.artifacts.accuracy import first_recovered, row_difference
from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile
from longmlm.compare.comparison import Comparison, accuracy_of
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


def curve_of(run: Path, distilled_tokens: int) -> dict[str, Any]:
    """Returns the accuracies of a run by tokens, and its tokens to recovery; both include the distillation."""
    lines = [line for line in MetricsFile(run).lines() if isinstance(line, EvaluationMetrics)]
    index = first_recovered([line.recovery for line in lines])
    points = [{"tokens": distilled_tokens + line.tokens, "accuracy": line.held_out.whole.accuracy} for line in lines]
    before = lines[0].held_out.whole
    recovered = None if index is None else points[index]["tokens"]
    return {
        "before": {"accuracy": before.accuracy, "loss": before.loss},
        "curve": points,
        "tokens_to_recovery": recovered,
    }


def of_comparison(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields an object for each trial of a comparison, without the views that it does not measure."""
    comparison = artifact.read(Comparison, path)
    control = {trial.seed: trial for trial in comparison.control_trials()}
    for trial in (trial for trial in comparison.trials if trial.arm != comparison.control):
        before, after = trial.before.whole, trial.after.whole
        recovery = trial.curve[-1].recovery
        own = control.get(trial.seed)
        yield {
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
            "control_gain": own and accuracy_of(own.after) - accuracy_of(own.before),
        }


def report(options: argparse.Namespace) -> None:
    """Measures every run and prints a line for each."""
    if options.comparison:
        write([*of_comparison(options.comparison, options)], options.output)
        return
    base = BaseModel.of(options)
    before = views_of(base.loaded, base, ("chunks", "cut"))
    control = (
        views_of(load_trained(model_or_best_checkpoint(options.control)), base, ("chunks",))["chunks"]
        if options.control
        else None
    )
    found = []
    for name, folder in (one.split("=", 1) for one in options.runs):
        loaded = load_trained(model_or_best_checkpoint(folder))
        extension, trained = loaded.provenance.extension, views_of(loaded, base, VIEWS)
        distilled = extension.distilled if extension else None
        far = trained["whole"].gains_over(trained["chunks"])["occurrence"]["row"]
        whole, chunks = trained["whole"].measured.whole, before["chunks"].measured.whole
        found.append(
            {
                "model": options.name or options.model,
                "positions": options.num_positions,
                "arm": name,
                "release_class": "LongformerForMaskedLM"
                if extension and extension.attention
                else type(loaded.model).__name__,
                "seed": options.seed,
                "num_rows": len(base.frozen.row_ids),
                "base_chunks": {"accuracy": chunks.accuracy, "loss": chunks.loss},
                "after": {"accuracy": whole.accuracy, "loss": whole.loss},
                "difference": difference(trained["whole"], before["chunks"]),
                **curve_of(Path(folder), distilled.tokens if distilled else 0),
                "far_repeats": far and asdict(far),
                "own_chunks": control and difference(trained["chunks"], control),
                "short_texts": difference(trained["cut"], before["cut"]),
                "control": control and difference(trained["whole"], control),
            }
        )
        print(json.dumps({key: value for key, value in found[-1].items() if key != "curve"}), flush=True)
    write(found, options.output)


def write(found: list[dict[str, Any]], output: Path) -> None:
    """Adds objects to the output, in place of those with the same model, arm and seed."""
    earlier = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else []
    new = [[one[key] for key in SAME] for one in found]
    earlier = [one for one in earlier if "after" not in one or [one[key] for key in SAME] not in new]
    output.write_text(json.dumps([*earlier, *found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = base_model_parser(__doc__)
    parser.add_argument("--name", help="model name in the output")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--runs", nargs="*", default=[], metavar="NAME=RUN")
    parser.add_argument("--comparison", type=Path, help="comparison.json, whose trials are added instead")
    parser.add_argument("--control", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True)
    report(parser.parse_args())
