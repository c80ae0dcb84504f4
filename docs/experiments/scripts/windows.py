"""Accuracy before training within windows, for several tables; or with biases for distances in place of positions.

    python docs/experiments/scripts/windows.py --model MODEL --rows ROWS --num-positions 1536 --max-rows 24 \
        --initialisations tile fitted --windows 0 64 128 256 --biases all first-two bucketed

A window of 0 is full attention. Biases replace the position table by its mean row. Their kinds: `all`, those of every
layer; `first-two` and `first`, those of the first layers, none in the others; `shared`, the first layer's in every
layer; `bucketed`, all of them, averaged over 32 logarithmic buckets of distances, as in T5 and MPNet.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from runs import BaseModel, base_model_parser
from segments import SegmentObjective
from torch import Tensor, nn

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.model.extension import long_table, with_positions
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.settings.extend import ExtendRecipe

NUM_EXACT, NUM_BUCKETS, FARTHEST = 8, 16, 128  # of each direction


def bucket_of(distance: int) -> int:
    """Returns the bucket of a distance: one for each up to 7, then logarithmic ones up to 128; negative to the left."""
    size = abs(distance)
    if size >= NUM_EXACT:
        share = math.log(size / NUM_EXACT) / math.log(FARTHEST / NUM_EXACT)
        size = min(NUM_BUCKETS - 1, NUM_EXACT + int(share * (NUM_BUCKETS - NUM_EXACT)))
    return size if distance >= 0 else -size


@torch.no_grad()
def change_biases(biases: Sequence[nn.Parameter], kind: str) -> None:
    """Changes the layers' biases, (heads, distances) from -2n to 2n, to those of this kind."""
    match kind:
        case "first" | "first-two":
            for bias in biases[1 if kind == "first" else 2 :]:
                bias.zero_()
        case "shared":
            for bias in biases[1:]:
                bias.copy_(biases[0])
        case "bucketed":
            middle = biases[0].shape[1] // 2
            buckets = torch.tensor([bucket_of(number - middle) for number in range(2 * middle + 1)])
            is_near = (torch.arange(2 * middle + 1) - middle).abs() <= FARTHEST
            for bias, bucket in ((bias, bucket) for bias in biases for bucket in buckets.unique()):
                chosen = buckets == bucket
                bias[:, chosen] = bias[:, chosen & is_near].mean(1, keepdim=True)
        case _:
            assert kind == "all"


def with_biases(base: LoadedModel, kind: str) -> SegmentObjective:
    """Returns the base model with biases of this kind on whole rows."""
    with torch.no_grad():
        objective = SegmentObjective(base.model, "bf16", "relative")
    change_biases([bias for name, bias in objective.named_parameters() if name.endswith("distance_bias")], kind)
    return objective


def shown(name: str, measured: Measured) -> str:
    """Returns a line with the accuracy of whole rows and of the blocks."""
    blocks = " / ".join(f"{block.accuracy:.1f}" for block in measured.blocks if block.accuracy is not None)
    return f"{name:28}{measured.whole.accuracy:.2f} ± {measured.whole.standard_error:.2f}   {blocks}"


def report(options: argparse.Namespace) -> None:
    """Measures all and prints a line for each."""
    base = BaseModel.of(options)
    for name in ("cut", "chunks"):
        print(shown(f"base_{name}", base.measure(MlmObjective(base.loaded.model, "bf16"), name)), flush=True)
    for initialisation in options.initialisations:
        recipe = ExtendRecipe(num_positions=options.num_positions, initialisation=initialisation)
        table: Tensor = long_table(
            base.loaded.model, Extension.of(recipe, ModelSource(name=options.model), base.num_positions)
        )
        for each_side in options.windows:
            long = with_positions(base.loaded, table).model
            if each_side:
                use_window(long, Window(each_side=each_side, num_global=1))
            found = base.measure(MlmObjective(long, "bf16"), "whole")
            print(shown(f"{initialisation}, {each_side or 'full'}", found), flush=True)
    for kind in options.biases:
        objective = with_biases(load_model(options.model), kind)
        print(shown(f"biases, {kind}", base.measure(objective, "whole")), flush=True)


if __name__ == "__main__":
    parser = base_model_parser(__doc__)
    parser.add_argument("--initialisations", nargs="*", default=[])
    parser.add_argument("--windows", nargs="*", type=int, default=[0])
    parser.add_argument("--biases", nargs="*", default=[])
    report(parser.parse_args())
