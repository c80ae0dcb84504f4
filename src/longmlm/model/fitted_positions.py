"""A position table fitted to the trained one: every position attends to its neighbours as a trained position does.

The kernel of a head is K(i, j) = f(p_i) W_q W_k f(p_j) / sqrt(head width): the part of its attention logits that
depends on the two positions alone. f divides a row, without its mean, by the standard deviation of a typical embedding,
as the embedding's LayerNorm does. Its softmax over j is where position i would look if all tokens were alike.

Example with one head and 4 trained rows: trained positions look at neighbours at distance -1, 0 and 1 with kernels 2, 1
and 3, on average, and less at others. Position 7 of a table of 12 rows is fitted so that its own kernels with positions
6, 7 and 8 are 2, 1 and 3 up to a constant, and those with all positions further away are at the level of the farthest
distance that counts. Text and gradients of the model are not needed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from longmlm.model.position_table import position_table_of
from longmlm.progress import Progress

NUM_WORDS = 4096  # of the word embedding, in which the standard deviation is measured
NUM_LAYERS = 2  # deeper layers see positions mixed with content
NUM_STEPS, NUM_QUERIES = 300, 64
REACH = 0.4  # of the trained positions: the largest distance that counts
CLOSENESS = 0.3  # weight of the squared distance to the table that the fit starts from, in units of its variance
RATE = 0.1  # Adam's learning rate, in units of the table's standard deviation


@dataclass(frozen=True, slots=True)
class PositionAttention:
    """The projections of rows of a position table to queries and keys, (heads, table width, head width) per layer."""

    queries: tuple[Float[Tensor, "heads width head_width"], ...]
    keys: tuple[Float[Tensor, "heads width head_width"], ...]

    @classmethod
    def of(cls, model: PreTrainedModel, num_layers: int) -> Self:
        """Returns the projections of the first layers with weights of their own, LayerNorm and scale folded in."""
        table, modules = position_table_of(model), dict(cast(nn.Module, model.base_model).named_modules())
        embeddings = cast(Any, table.embeddings)
        rows, words = _plain(table.usable_rows), _plain(embeddings.word_embeddings.weight)
        sample = words[:: max(1, len(words) // NUM_WORDS)]
        deviation = (sample + rows[torch.arange(len(sample)) % len(rows)]).std(-1).mean()
        width = rows.shape[1]
        entry = (torch.eye(width) - 1 / width) * _plain(embeddings.LayerNorm.weight) / deviation
        for name in ("embeddings_project", "encoder.embedding_hidden_mapping_in"):  # of ELECTRA and ALBERT
            if name in modules:
                entry = entry @ _plain(cast(nn.Linear, modules[name]).weight).T
        queries, keys = (
            [
                (entry @ _plain(cast(nn.Linear, module).weight).T).unflatten(1, (model.config.num_attention_heads, -1))
                for name, module in modules.items()
                if name.endswith(endings)
            ]
            for endings in ((".query", ".q_lin"), (".key", ".k_lin"))
        )
        scale = math.sqrt(queries[0].shape[-1])
        return cls(
            tuple(query.transpose(0, 1) / scale for query in queries[:num_layers]),
            tuple(key.transpose(0, 1) for key in keys[:num_layers]),
        )

    def kernels(
        self, queries: Float[Tensor, "queries width"], keys: Float[Tensor, "keys width"]
    ) -> Iterator[Float[Tensor, "heads queries keys"]]:
        """Yields the kernels of a layer's heads between rows of a table, for each layer."""
        for to_query, to_key in zip(self.queries, self.keys, strict=True):
            yield (queries @ to_query) @ (keys @ to_key).transpose(1, 2)


def _plain(weight: Tensor) -> Tensor:
    """Returns a weight of any precision and device in fp32 on the CPU, without its gradient."""
    return weight.detach().float().cpu()


def fitted_table(
    trained: Float[Tensor, "n width"],
    start: Float[Tensor, "positions width"],
    attention: PositionAttention,
    seed: int = 0,
) -> Float[Tensor, "positions width"]:
    """Returns `start` fitted to the kernels of the `trained` table; row 0 stays as it is.

    What is minimised is the Kullback-Leibler divergence between two softmaxes over all positions but 0, the mean over
    heads and queries: that of the trained kernels' means by distance, and that of the table's own kernels. A penalty
    keeps rows close to `start`, whose scale the layers above are used to.
    """
    generator = torch.Generator().manual_seed(seed)
    num_positions, begin = len(start), start.detach().float()
    goals = kernels_by_distance(trained.detach().float(), attention)
    table, scale = begin.clone().requires_grad_(), begin[1:].std()
    optimizer = torch.optim.Adam([table], lr=RATE * scale.item())
    with torch.enable_grad(), Progress("fit positions", NUM_STEPS, "step") as progress:
        for step in progress.over(range(NUM_STEPS)):
            optimizer.param_groups[0]["lr"] = RATE * scale.item() * (1 - step / NUM_STEPS)
            queries = torch.randint(1, num_positions, (NUM_QUERIES,), generator=generator)
            reach = goals[0].shape[1] // 2
            distances = (torch.arange(1, num_positions) - queries.unsqueeze(1)).clamp(-reach, reach) + reach
            loss = CLOSENESS * ((table - begin) / scale).square().mean()
            for goal, kernel in zip(goals, attention.kernels(table[queries], table[1:]), strict=True):
                loss = loss + _divergence(goal[:, distances], kernel) / len(goals)
            optimizer.zero_grad()
            loss.backward()
            assert table.grad is not None
            table.grad[0] = 0
            optimizer.step()
    return torch.cat([start[:1], table.detach()[1:].to(start.dtype)])


@torch.no_grad()
def kernels_by_distance(
    trained: Float[Tensor, "n width"], attention: PositionAttention
) -> list[Float[Tensor, "heads distances"]]:
    """Returns per layer the mean kernel by distance, from -REACH * n to REACH * n; row 0, [CLS]'s, is left out.

    Each query's kernels are centred first: a constant per query does not change its softmax.
    """
    rows, reach = trained[1:], max(1, int(REACH * (len(trained) - 1)))
    middle = len(rows) - 1
    distances = (torch.arange(len(rows)) - torch.arange(len(rows)).unsqueeze(1) + middle).flatten()
    counts = distances.bincount()
    goals = []
    for kernel in attention.kernels(rows, rows):
        centred = (kernel - kernel.mean(-1, keepdim=True)).flatten(1)
        sums = torch.zeros(len(kernel), len(counts)).index_add_(1, distances, centred)
        goals.append((sums / counts)[:, max(0, middle - reach) : middle + reach + 1])
    return goals


def _divergence(goal: Float[Tensor, "heads queries keys"], kernel: Float[Tensor, "heads queries keys"]) -> Tensor:
    """Returns the mean divergence of the kernel's softmax from the goal's, in nats."""
    wanted = goal.log_softmax(-1)
    return (wanted.exp() * (wanted - kernel.log_softmax(-1))).sum(-1).mean()
