"""Accuracy before training: windows in the lowest layers, tables with full attention, and distilled models.

    python docs/experiments/scripts/local_layers.py --model MODEL --rows ROWS --num-positions 1536 --max-rows 40 \
        --initialisations hierarchical tile fitted --layers 1 2 3 4 5 6 --models distilled=FOLDER --output FOUND.json

The windows have half of the base model's positions on each side, and tiled positions. Each arm is a line in the output,
with the base model in chunks under the same masks; `--models` names extended models to measure too. `--score-factors`
scales the attention logits of all layers above the local ones.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from runs import BaseModel, add_to, base_model_parser, extended
from transformers import PreTrainedModel

from longmlm.artifacts.accuracy import Measured, row_difference
from longmlm.model.architecture import architecture_of
from longmlm.model.loading import load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.runtime.launch import resolved_precision


def sharpen(model: PreTrainedModel, first_layer: int, factor: float) -> None:
    """Multiplies the attention logits of the layers from `first_layer` on by `factor`."""
    for layer in architecture_of(model).layers[first_layer:]:
        for name, parameter in layer.named_parameters():
            if ".query." in name:
                parameter.data.mul_(factor)


def report(options: argparse.Namespace) -> None:
    """Measures all arms, prints a line for each, and adds them to the output."""
    base, precision = BaseModel.of(options), resolved_precision("auto")
    chunks = base.measure(MlmObjective(base.loaded.model, precision), "chunks")
    found = []

    def add(arm: str, release_class: str, measured: Measured) -> None:
        change = row_difference(measured, chunks)
        assert change is not None
        found.append(
            {
                "model": options.name or options.model,
                "positions": options.num_positions,
                "arm": arm,
                "release_class": release_class,
                "num_rows": len(base.frozen.row_ids),
                "base_chunks": {"accuracy": chunks.whole.accuracy, "loss": chunks.whole.loss},
                "before": {"accuracy": measured.whole.accuracy, "loss": measured.whole.loss},
                "difference": asdict(change),
            }
        )
        before = f"{measured.whole.accuracy:.2f} ({measured.whole.loss:.3f})"
        print(f"{arm:24}{before}   {change.points:+.2f} ± {change.standard_error:.2f} points", flush=True)

    kind = type(base.loaded.model).__name__
    add("base_chunks", kind, chunks)
    for initialisation in options.initialisations:
        long = extended(base.loaded, options.num_positions, initialisation).model
        add(initialisation, kind, base.measure(MlmObjective(long, precision), "whole"))
    for number in options.layers:
        long = extended(base.loaded, options.num_positions, "tile").model
        use_window(long, Window(base.num_positions // 2, 0, number))
        measured = base.measure(MlmObjective(long, precision), "whole")
        is_all = " (all)" if number == long.config.num_hidden_layers else ""
        add(f"local layers: {number}{is_all}", "LongformerForMaskedLM", measured)
    for factor in options.score_factors:
        long = extended(base.loaded, options.num_positions, "tile").model
        use_window(long, Window(base.num_positions // 2, 0, options.num_local_layers))
        sharpen(long, options.num_local_layers, factor)
        measured = base.measure(MlmObjective(long, precision), "whole")
        add(f"local layers: {options.num_local_layers}, logits above times {factor}", "LongformerForMaskedLM", measured)
    for name, folder in (one.split("=", 1) for one in options.models):
        add(name, kind, base.measure(MlmObjective(load_model(folder).model, precision), "whole"))
    add_to(options.output, found, ("model", "positions", "arm"))


if __name__ == "__main__":
    parser = base_model_parser(__doc__)
    parser.add_argument("--name", help="model name in the output")
    parser.add_argument("--initialisations", nargs="*", default=[])
    parser.add_argument("--layers", nargs="*", type=int, default=[])
    parser.add_argument(
        "--score-factors",
        nargs="*",
        type=float,
        default=[],
        help="factors for the attention logits of the layers above the local ones",
    )
    parser.add_argument("--num-local-layers", type=int, default=3, help="number of local layers below them")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--output", type=Path, required=True)
    report(parser.parse_args())
