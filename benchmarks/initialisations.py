"""What each initialisation leaves before training: accuracy by block, and where its positions attract attention.

    python benchmarks/initialisations.py --model MODEL --rows ROWS --num-positions 1536 --max-rows 48 --output FOLDER

The kernel of a head is K(i, j) = p_i W_q W_k p_j / sqrt(head width), with p the rows of the table after the embedding's
LayerNorm. Its softmax over j is where query i would look if all tokens were alike. Three shares of it, averaged over
queries, heads and layers: `near`, at most 8 positions away; `repeated`, at most 8 away from an equal offset in another
block; and the rest.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.artifacts.accuracy import Measured
from longmlm.artifacts.provenance import Extension, ModelSource
from longmlm.data.rows import open_named_rows
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.evaluation.frozen import FrozenRows, viewer_of
from longmlm.evaluation.measure import measure
from longmlm.model.architecture import architecture_of
from longmlm.model.extension import with_positions
from longmlm.model.loading import LoadedModel, load_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of
from longmlm.model.positions import extended_table
from longmlm.reports.charts import Chart, Colour, Series, write_png
from longmlm.reports.tables import Table, markdown_table
from longmlm.settings.extend import ExtendRecipe, Initialisation
from longmlm.settings.held_out import HeldOut

OTHERS: tuple[Initialisation, ...] = ("random", "repeat-last", "reflected", "interpolate", "tile", "spaced", "averaged")
ALPHAS, SMOOTH_TERMS, AMPLITUDES = (0.1, 0.2, 0.3, 0.4, 0.45, 0.6), (2, 3, 4, 6, 8, 12, 16), (1.2, 1.4, 1.6, 2.0)
DRAWN: dict[str, Colour] = {"base": "ink", "tile": "pale", "hierarchical 0.4": "amber", "stretched 4": "blue"}
NEAR = 8
EVERY = 16  # positions between the queries that are averaged


def variants(num_positions: int) -> dict[str, ExtendRecipe]:
    """Returns the initialisations to measure, by name."""
    plain = ExtendRecipe(num_positions=num_positions)
    stretched = replace(plain, initialisation="stretched")
    found = {name: replace(plain, initialisation=name) for name in OTHERS}
    found |= {f"hierarchical {alpha}": replace(plain, alpha=alpha) for alpha in ALPHAS}
    found |= {f"stretched {terms}": replace(stretched, smooth_terms=terms) for terms in SMOOTH_TERMS}
    for terms, amplitude in itertools.product((4, 6), AMPLITUDES):
        name = f"stretched {terms}, amplitude {amplitude}"
        found[name] = replace(stretched, smooth_terms=terms, amplitude=amplitude)
    return {**found, "stretched 4, first block kept": replace(stretched, keep_first_block=True)}


@dataclass(frozen=True, slots=True)
class Attraction:
    """Where the positions attract attention, in percent, and the mean kernel by distance."""

    near: float
    repeated: float
    by_distance: Float[Tensor, " distances"]


def kernels(model: PreTrainedModel, table: Tensor, deviation: float) -> Iterator[Float[Tensor, "queries positions"]]:
    """Yields the kernel of every head of every layer, for every EVERY-th query."""
    embeddings, config = architecture_of(model).encoder.embeddings, model.config
    norm = cast(Any, embeddings).LayerNorm
    inputs = (table - table.mean(-1, keepdim=True)) / deviation * norm.weight
    width = config.hidden_size // config.num_attention_heads
    for layer in architecture_of(model).layers:
        attention = cast(Any, layer).attention.self
        queries, keys = (part.weight @ inputs.T for part in (attention.query, attention.key))
        for first in range(0, config.hidden_size, width):
            head = slice(first, first + width)
            yield queries[head, ::EVERY].T @ keys[head] / math.sqrt(width)


@torch.no_grad()
def attraction(model: PreTrainedModel, table: Tensor, deviation: float, n: int) -> Attraction:
    """Returns the shares over all heads and layers; the kernel by distance is the first layer's."""
    num_positions, heads = len(table), model.config.num_attention_heads
    distance = torch.arange(num_positions) - torch.arange(0, num_positions, EVERY).unsqueeze(1)
    is_near = distance.abs() <= NEAR
    is_repeated = ~is_near & (((distance + NEAR) % n) <= 2 * NEAR)
    near, repeated, sums = [], [], torch.zeros(2 * num_positions - 1)
    for number, kernel in enumerate(kernels(model, table, deviation)):
        share = kernel.softmax(-1)
        near.append((share * is_near).sum(-1).mean())
        repeated.append((share * is_repeated).sum(-1).mean())
        if number < heads:
            centred = kernel - kernel.mean(-1, keepdim=True)
            sums.index_add_(0, (distance + num_positions - 1).flatten(), centred.flatten() / heads)
    counts = torch.zeros_like(sums).index_add_(
        0, (distance + num_positions - 1).flatten(), torch.ones(distance.numel())
    )
    means = [100 * torch.stack(values).mean().item() for values in (near, repeated)]
    return Attraction(means[0], means[1], sums / counts.clamp(min=1))


def input_deviation(base: LoadedModel, frozen: FrozenRows) -> float:
    """Returns the mean standard deviation of an embedding before its LayerNorm."""
    embeddings = cast(Any, architecture_of(base.model).encoder.embeddings)
    tokens = torch.tensor(frozen.rows[frozen.row_ids[0]].input_ids[:64].astype("int64"))
    rows = position_table_of(base.model).usable_rows[: len(tokens)]
    total = embeddings.word_embeddings(tokens) + rows + embeddings.token_type_embeddings.weight[0]
    return total.std(-1).mean().item()


def accuracies(base: LoadedModel, table: Tensor, frozen: FrozenRows, n: int) -> Measured:
    """Returns the accuracy of the model with this table on whole rows."""
    objective = MlmObjective(with_positions(base, table).model, "bf16")
    return measure(objective, frozen, viewer_of("whole", n, frozen.special), n, None)


def report(options: argparse.Namespace) -> None:
    """Measures every variant; writes initialisations.json, a picture and a Markdown table, which it prints."""
    base = load_model(options.model)
    vocabulary = vocabulary_of_pretrained(base.tokenizer, options.model)
    rows, held_out = open_named_rows(options.rows, "held_out"), HeldOut(max_rows=options.max_rows)
    frozen = FrozenRows(rows, held_out, vocabulary.maskable, vocabulary.special, 4)
    trained = position_table_of(base.model).usable_rows
    n, deviation = len(trained), input_deviation(base, frozen)
    lines, curves, results = [], {}, {}
    views = {name: viewer_of(name, n, frozen.special) for name in ("cut", "windows")}
    for name, view in views.items():
        measured = measure(MlmObjective(base.model, "bf16"), frozen, view, n, None)
        results[f"base_{name}"] = {"accuracy": measured.whole.accuracy, "error": measured.whole.standard_error}
        lines.append(
            [f"base_{name}", f"{measured.whole.accuracy:.2f} ± {measured.whole.standard_error:.2f}", "", "", ""]
        )
    own = attraction(base.model, trained, deviation, n)
    curves["base"] = own.by_distance
    lines.append(["base table", "", "", f"{own.near:.1f}", f"{own.repeated:.1f}"])
    for name, recipe in variants(options.num_positions).items():
        table = extended_table(trained, Extension.of(recipe, ModelSource(name=options.model), n))
        measured, found = accuracies(base, table, frozen, n), attraction(base.model, table, deviation, n)
        curves[name] = found.by_distance
        blocks = [block.accuracy for block in measured.blocks]
        by_block = " / ".join(f"{block:.1f}" for block in blocks)
        lines.append([name, _percent(measured), by_block, f"{found.near:.1f}", f"{found.repeated:.1f}"])
        results[name] = {"accuracy": measured.whole.accuracy, "error": measured.whole.standard_error, "blocks": blocks}
        results[name] |= {"near": found.near, "repeated": found.repeated}
        print(lines[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    (options.output / "initialisations.json").write_text(text, encoding="utf-8")
    write_png(_chart(curves, n), options.output / "kernels.png")
    print(markdown_table(Table(["table", "accuracy %", "by block", "near %", "repeated %"], lines)))


def _percent(measured: Measured) -> str:
    return f"{measured.whole.accuracy:.2f} ± {measured.whole.standard_error:.2f}"


def _chart(curves: dict[str, Tensor], n: int) -> Chart:
    series = []
    for name, colour in DRAWN.items():
        middle = len(curves[name]) // 2
        half = min(middle, 2 * n)
        distances = range(-half, half + 1, max(1, n // 64))
        values = [curves[name][middle + distance].item() for distance in distances]
        series.append(Series(name, colour, [float(distance) for distance in distances], values))
    axes = ("distance from query to key (positions)", "mean kernel of the first layer's heads")
    return Chart("Attraction between positions", axes, series)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--num-positions", type=int, required=True)
    parser.add_argument("--max-rows", type=int, default=48)
    parser.add_argument("--output", type=Path, required=True)
    report(parser.parse_args())
