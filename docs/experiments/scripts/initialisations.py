"""What each initialisation leaves before training: accuracy by block, and where its positions attract attention.

    python docs/experiments/scripts/initialisations.py --model MODEL --rows ROWS --num-positions 1536 --output FOLDER

The kernel of a head is the part of its attention logits that depends on two positions alone, as defined in
longmlm.model.fitted_positions. Its softmax over keys is where a query would look if all tokens were alike. Two shares
of it, averaged over queries, heads and the first two layers: `near`, at most 8 positions away, and `repeated`, at most
8 away from the same offset in another block. `own block` is the accuracy when tokens attend to their own block alone:
what is missing there is lost because the rows themselves have changed.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from runs import BaseModel, base_model_parser
from tables import TABLES, kept, loud
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.batches.collate import MlmBatch
from longmlm.model.extension import long_table, with_positions
from longmlm.model.fitted_positions import NUM_LAYERS, PositionAttention
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of, stretched_table
from longmlm.reports.charts import Chart, Colour, Series, write_png
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.extend import ExtendRecipe

ALPHAS, SMOOTH_TERMS, AMPLITUDES = (0.1, 0.2, 0.3, 0.4, 0.45, 0.6), (2, 3, 6, 8, 12), (1.2, 1.6, 2.0)
DRAWN: dict[str, Colour] = {"base": "ink", "hierarchical 0.4": "amber", "stretched": "pale", "fitted": "blue"}
NEAR = 8
EVERY = 16  # positions between the queries that are averaged


def recipes(num_positions: int) -> dict[str, ExtendRecipe]:
    """Returns the initialisations of longmlm to measure, by name."""
    plain = ExtendRecipe(num_positions=num_positions, initialisation="hierarchical")
    found = {"tile": replace(plain, initialisation="tile"), "fitted": replace(plain, initialisation="fitted")}
    return found | {f"hierarchical {alpha}": replace(plain, alpha=alpha) for alpha in ALPHAS}


def variants(model: PreTrainedModel, trained: Tensor, num_positions: int) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yields the name of each table to measure, and what computes it."""
    tables: dict[str, Callable[[], Tensor]] = {}
    for name, recipe in recipes(num_positions).items():
        tables[name] = partial(long_table, model, Extension.of(recipe, ModelSource(name="base"), len(trained)))
    tables |= {name: partial(table, trained, num_positions) for name, table in TABLES.items()}
    for name, table in tables.items():
        yield name, table
        if name in ("stretched", "fitted"):
            yield f"{name}, first block kept", lambda table=table: kept(trained, table())
    for terms in SMOOTH_TERMS:
        yield f"stretched {terms}", partial(stretched_table, trained, num_positions, terms)
    for terms, amplitude in itertools.product((4, 6), AMPLITUDES):
        yield f"stretched {terms}, amplitude {amplitude}", partial(loud, trained, num_positions, terms, amplitude)


@dataclass(frozen=True, slots=True)
class Attraction:
    """Where the positions attract attention, in percent, and the mean kernel by distance."""

    near: float
    repeated: float
    by_distance: Float[Tensor, " distances"]


@torch.no_grad()
def attraction(attention: PositionAttention, table: Tensor, n: int) -> Attraction:
    """Returns the shares over the heads of the first layers; the kernel by distance is the first layer's."""
    num_positions = len(table)
    distance = torch.arange(num_positions) - torch.arange(0, num_positions, EVERY).unsqueeze(1)
    is_near = distance.abs() <= NEAR
    is_repeated = ~is_near & (((distance + NEAR) % n) <= 2 * NEAR)
    near, repeated, sums = [], [], torch.zeros(2 * num_positions - 1)
    for number, kernel in enumerate(attention.kernels(table[::EVERY], table)):
        share = kernel.softmax(-1)
        near.append((share * is_near).sum(-1).mean())
        repeated.append((share * is_repeated).sum(-1).mean())
        if number == 0:
            centred = (kernel - kernel.mean(-1, keepdim=True)).mean(0)
            sums.index_add_(0, (distance + num_positions - 1).flatten(), centred.flatten())
    counts = torch.zeros_like(sums).index_add_(
        0, (distance + num_positions - 1).flatten(), torch.ones(distance.numel())
    )
    means = [100 * torch.stack(values).mean().item() for values in (near, repeated)]
    return Attraction(means[0], means[1], sums / counts.clamp(min=1))


def accuracies(base: BaseModel, table: Tensor) -> tuple[Measured, Measured]:
    """Returns the accuracy of the model with this table on whole rows, and when blocks do not see each other."""
    long = with_positions(base.loaded, table).model
    own_block = OwnBlockObjective(long, base.num_positions)
    return base.measure(MlmObjective(long, "bf16"), "whole"), base.measure(own_block, "whole")


class OwnBlockObjective(MlmObjective):
    """A model whose tokens attend only to tokens of their own block of `num_positions`."""

    def __init__(self, model: PreTrainedModel, num_positions: int) -> None:
        super().__init__(model, "bf16")
        self.num_positions = num_positions

    @property
    def reads_packed_batches(self) -> bool:
        """False: the mask is for padded batches."""
        return False

    def attention_mask(self, batch: MlmBatch) -> Bool[Tensor, "rows 1 length length"]:
        """Returns which tokens see each other."""
        block = torch.arange(batch.input_ids.shape[1]) // self.num_positions
        mask = (block.unsqueeze(0) == block.unsqueeze(1)).expand(len(batch.input_ids), 1, -1, -1)
        return mask if batch.attention_mask is None else mask & batch.attention_mask[:, None, None]


def report(options: argparse.Namespace) -> None:
    """Measures every variant; writes initialisations.json, a picture and a Markdown table, which it prints."""
    base = BaseModel.of(options)
    model, n = base.loaded.model, base.num_positions
    trained, attention = position_table_of(model).usable_rows, PositionAttention.of(model, NUM_LAYERS)
    lines, curves, results = [], {}, {}
    for name in ("cut", "chunks"):
        measured = base.measure(MlmObjective(model, "bf16"), name)
        results[f"base_{name}"] = {"accuracy": measured.whole.accuracy, "error": measured.whole.standard_error}
        lines.append([f"base_{name}", _percent(measured), "", "", "", ""])
    own = attraction(attention, trained, n)
    curves["base"] = own.by_distance
    lines.append(["base table", "", "", "", f"{own.near:.1f}", f"{own.repeated:.1f}"])
    for name, make_table in variants(model, trained, options.num_positions):
        if options.only and name not in options.only:
            continue
        table = make_table()
        (measured, own_block), found = accuracies(base, table), attraction(attention, table, n)
        curves[name] = found.by_distance
        blocks = [block.accuracy for block in measured.blocks]
        by_block = " / ".join(f"{block:.1f}" for block in blocks)
        cells = [_percent(measured), by_block, _percent(own_block), f"{found.near:.1f}", f"{found.repeated:.1f}"]
        lines.append([name, *cells])
        results[name] = {"accuracy": measured.whole.accuracy, "error": measured.whole.standard_error, "blocks": blocks}
        results[name] |= {"near": found.near, "repeated": found.repeated, "own_block": own_block.whole.accuracy}
        print(lines[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    (options.output / "initialisations.json").write_text(text, encoding="utf-8")
    write_png(_chart(curves, n), options.output / "kernels.png")
    print(markdown_table(Table(["table", "accuracy %", "by block", "own block %", "near %", "repeated %"], lines)))


def _percent(measured: Measured) -> str:
    return f"{measured.whole.accuracy:.2f} ± {measured.whole.standard_error:.2f}"


def _chart(curves: dict[str, Tensor], n: int) -> Chart:
    series = []
    for name, colour in ((name, colour) for name, colour in DRAWN.items() if name in curves):
        middle = len(curves[name]) // 2
        half = min(middle, 2 * n)
        distances = range(-half, half + 1, max(1, n // 64))
        values = [curves[name][middle + distance].item() for distance in distances]
        series.append(Series(name, colour, [float(distance) for distance in distances], values))
    axes = ("distance from query to key (positions)", "mean kernel of the first layer's heads")
    return Chart("Attraction between positions", axes, series)


if __name__ == "__main__":
    parser = base_model_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of initialisations; by default all")
    report(parser.parse_args())
