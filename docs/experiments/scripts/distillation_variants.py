"""Extends a model by distilling queries, keys and the position table alone, to measure it with local_layers.py.

python docs/experiments/scripts/distillation_variants.py --base MODEL --rows ROWS --num-positions 1536 \
        --num-tokens 150000 --learning-rate 1e-3 --output FOLDER
"""

import argparse
from dataclasses import replace

from transformers import PreTrainedModel

from longmlm.model import distillation
from longmlm.model.architecture import architecture_of
from longmlm.settings.extend import Distillation, ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import ComputePrecision
from longmlm.stages.extend import extend

LowestLayers = distillation.LowestLayers


class QueriesAndKeys(LowestLayers):
    """The lowest layers, of which only queries, keys and the position table are trained."""

    @classmethod
    def of(cls, model: PreTrainedModel, num_layers: int, precision: ComputePrecision) -> LowestLayers:
        """Returns a copy of the model without the layers above."""
        lowest = LowestLayers.of(model, num_layers, precision)
        named = architecture_of(lowest.objective.model).layers.named_parameters()
        chosen = [parameter for name, parameter in named if ".query." in name or ".key." in name]
        return replace(lowest, trained=(lowest.trained[0], *chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--num-positions", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num-tokens", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    distillation.LowestLayers = QueriesAndKeys
    distilled = Distillation(num_tokens=options.num_tokens, learning_rate=options.learning_rate)
    recipe = ExtendRecipe(num_positions=options.num_positions, initialisation="distilled", distillation=distilled)
    extend(ExtendConfig(base=options.base, output=options.output, rows=options.rows, recipe=recipe))
