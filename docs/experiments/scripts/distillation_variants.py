"""Extends a model with a variant of the distillation that is not a setting, to measure it with local_layers.py.

    python docs/experiments/scripts/distillation_variants.py all-states --base MODEL --rows ROWS --num-positions 1536 \
        --output FOLDER

Variants: `all-states` compares the states of every trained layer, not only of the last one; `queries-and-keys` and
`attention` train the position table with the weights of queries and keys, or of attention, and nothing else.
"""

import argparse
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch
from longmlm.model import distillation
from longmlm.model.architecture import architecture_of
from longmlm.model.mlm import MlmObjective
from longmlm.settings.extend import Distillation, ExtendConfig, ExtendRecipe
from longmlm.settings.pretrain import ComputePrecision
from longmlm.stages.extend import extend

PARTS: Mapping[str, tuple[str, ...]] = {"queries-and-keys": (".query.", ".key."), "attention": ("attention.",)}
PLAIN = distillation.LowestLayers


class AllStates(MlmObjective):
    """An encoder that returns the states of all its layers."""

    def hidden_states(self, batch: MlmBatch) -> Tensor:
        """Returns the states of all layers, one layer after the other."""
        found: list[Tensor] = []

        def keep(_layer: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            found.append(output if isinstance(output, Tensor) else output[0])

        handles = [layer.register_forward_hook(keep) for layer in architecture_of(self.model).layers]
        super().hidden_states(batch)
        for handle in handles:
            handle.remove()
        return torch.stack(found)


class Variant(PLAIN):
    """The lowest layers of a variant."""

    name = ""

    @classmethod
    def of(cls, model: PreTrainedModel, num_layers: int, precision: ComputePrecision) -> PLAIN:
        """Returns the lowest layers, with the variant's states and trained parameters."""
        plain = PLAIN.of(model, num_layers, precision)
        lowest = plain.objective.model
        if cls.name == "all-states":
            return PLAIN(AllStates(lowest, precision), plain.trained)
        named = architecture_of(lowest).layers.named_parameters()
        parts = [parameter for name, parameter in named if any(part in f".{name}" for part in PARTS[cls.name])]
        return PLAIN(plain.objective, (plain.trained[0], *parts))


def extend_with_variant(options: argparse.Namespace) -> None:
    """Writes the extended model."""
    Variant.name = options.variant
    distillation.LowestLayers = Variant
    distilled = Distillation(num_tokens=options.num_tokens, learning_rate=options.learning_rate)
    recipe = ExtendRecipe(num_positions=options.num_positions, initialisation="distilled", distillation=distilled)
    extend(ExtendConfig(base=options.base, output=options.output, rows=options.rows, recipe=recipe))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["all-states", *PARTS])
    parser.add_argument("--base", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--num-positions", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num-tokens", type=int, default=150_000)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    extend_with_variant(parser.parse_args())
