"""Trains the bundled model on long rows without a longer position table: in windows, with or without a cache.

    longmlm run demo docs/experiments/mini.toml --output FOLDER --until prepare
    python docs/experiments/scripts/segments.py transformer-xl FOLDER --seed 42 --learning-rate 6e-4

Each row is read in windows of the base model's n positions: n - 2 tokens between both special tokens, as in
base_chunks.

- `chunks`: windows do not see each other.
- `cached`: tokens also attend to those of the previous window; positions are the base model's, the same in each window.
- `transformer-xl`: the same, but a bias for the distance between two tokens, in every layer and head, replaces the
  absolute positions, as in Transformer-XL (Dai et al. 2019). It starts from the attention between positions that the
  base model has learned (longmlm.model.fitted_positions), averaged over pairs at the same distance.
- `relative`: the same biases, but the row is read whole; all distances beyond n / 2 have one bias.

Keys and values of the previous window are a cache: no gradient flows through them.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch
from jaxtyping import Bool, Float, Int64
from runs import OpenRun, curve
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from longmlm.artifacts.metrics import EvaluationMetrics, MetricsFile, TrainingMetrics
from longmlm.batches.collate import MlmBatch
from longmlm.evaluation.run_evaluation import RunEvaluation
from longmlm.model.architecture import set_dropout
from longmlm.model.fitted_positions import PositionAttention
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of
from longmlm.settings.pretrain import ComputePrecision

Kind = Literal["chunks", "cached", "transformer-xl", "relative"]
HAS_BIASES: tuple[Kind, ...] = ("transformer-xl", "relative")
WHOLE_ROW = 1_000_000_000  # tokens: more than any row has
ATTENTION_NAME = "segments"  # in transformers' registry


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows of a packed batch in windows; `is_next` says which windows continue the row of the one before."""

    input_ids: Int64[Tensor, "windows n"]
    is_token: Bool[Tensor, "windows n"]
    is_next: Bool[Tensor, " windows"]

    @classmethod
    def of(cls, batch: MlmBatch, n: int, pad: int) -> Self:
        """Returns the windows of a batch."""
        parts, is_next = [], []
        for row in batch.input_ids[0].split(batch.row_lengths):
            for number, content in enumerate(row[1:-1].split(n - 2)):
                parts.append(torch.cat([row[:1], content, row[-1:]]))
                is_next.append(number > 0)
        input_ids = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=pad)
        lengths = torch.tensor([len(part) for part in parts])
        return cls(input_ids, torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1), torch.tensor(is_next))

    def unsplit(self, hidden: Float[Tensor, "windows n width"]) -> Float[Tensor, "1 tokens width"]:
        """Returns hidden states of the windows in the order of the packed batch."""
        parts: list[Tensor] = []
        for number, is_next in enumerate(self.is_next.tolist()):
            length = int(self.is_token[number].sum())
            if is_next:
                parts[-1] = parts[-1][:-1]  # the separator that the row does not have
            parts.append(hidden[number, is_next:length])
        return torch.cat(parts).unsqueeze(0)


def mean_by_distance(kernel: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads distances"]:
    """Returns the mean over pairs at each distance, key minus query, from -2n to 2n; beyond n / 2 one mean for all."""
    num_heads, n, _ = kernel.shape
    distance = torch.arange(n) - torch.arange(n).unsqueeze(1)
    found = torch.zeros(num_heads, 4 * n + 1)
    for value in range(-2 * n, 2 * n + 1):
        far = abs(value) > n // 2
        pairs = (distance * (1 if value > 0 else -1) > n // 2) if far else distance == value
        found[:, value + 2 * n] = kernel[:, pairs].mean(-1)
    return found


class SegmentObjective(MlmObjective):
    """MLM in windows of the base model's length."""

    def __init__(self, model: PreTrainedModel, precision: ComputePrecision, kind: Kind) -> None:
        super().__init__(model, precision)
        self.kind, self.n = kind, self.parts.num_positions
        self.windows: Windows | None = None
        if kind in HAS_BIASES:
            self._replace_positions()
        if kind != "chunks":
            AttentionInterface.register(ATTENTION_NAME, self._attention)
            AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
            model.set_attn_implementation(ATTENTION_NAME)

    @property
    def reads_packed_batches(self) -> bool:
        """True: batches are packed, and this class cuts them."""
        return True

    def hidden_states(self, batch: MlmBatch) -> Float[Tensor, "1 tokens width"]:
        """Returns the last hidden states."""
        length = WHOLE_ROW if self.kind == "relative" else self.n
        self.windows = windows = Windows.of(batch, length, self.model.config.pad_token_id)
        positions = torch.arange(windows.input_ids.shape[1]) % self.n + self.parts.position_offset
        hidden = self.parts.encoder(
            input_ids=windows.input_ids,
            attention_mask=windows.is_token.long(),
            position_ids=positions.expand_as(windows.input_ids),
        )
        return windows.unsplit(hidden.last_hidden_state)

    def _replace_positions(self) -> None:
        """Sets all rows of the position table to their mean, and gives every layer biases for distances."""
        table, layers = position_table_of(self.model), self.parts.layers
        rows = table.usable_rows.detach().clone()
        mean = rows.mean(0)
        kernels = PositionAttention.of(self.model, len(layers)).kernels(rows - mean, rows - mean)
        modules = [cast(Any, layer).attention.self for layer in layers]
        for module, kernel in zip(modules, kernels, strict=True):
            module.distance_bias = nn.Parameter(mean_by_distance(kernel))
        positions = cast(Any, table.embeddings).position_embeddings.weight
        positions.requires_grad_(requires_grad=False)
        positions.copy_(mean.expand_as(positions))

    def _attention(
        self,
        module: Any,
        query: Float[Tensor, "windows heads n head_dim"],
        key: Float[Tensor, "windows heads n head_dim"],
        value: Float[Tensor, "windows heads n head_dim"],
        _: Tensor | None,
        **options: Any,
    ) -> tuple[Float[Tensor, "windows n heads head_dim"], None]:
        """Attends to the tokens of the window and, unless it is the whole row, to those of the previous window."""
        windows, place = cast(Windows, self.windows), torch.arange(query.shape[2])
        is_visible, places = windows.is_token, place
        if self.kind != "relative":
            key, value = (torch.cat([one.detach().roll(1, 0), one], dim=2) for one in (key, value))
            is_cached = windows.is_token.roll(1, 0) & windows.is_next.unsqueeze(1)
            is_visible = torch.cat([is_cached, windows.is_token], dim=1)
            places = torch.cat([place - (self.n - 2), place])  # windows advance by n - 2 tokens
        is_hidden = ~is_visible[:, None, None]
        added = torch.zeros_like(is_hidden, dtype=query.dtype).masked_fill(is_hidden, -torch.inf)
        if self.kind in HAS_BIASES:
            distance = (places - place.unsqueeze(1)).clamp(-2 * self.n, 2 * self.n)
            added = added + module.distance_bias[:, distance + 2 * self.n].to(query.dtype)
        output = scaled_dot_product_attention(query, key, value, attn_mask=added, scale=options.get("scaling"))
        return output.transpose(1, 2), None


def measure(kind: Kind, folder: Path, seed: int, learning_rate: float) -> str:
    """Trains one run as the pipeline's pretrain stage does, and returns its held-out accuracies and speed."""
    opened = OpenRun.of(folder, f"{kind}-{learning_rate}-{seed}", seed=seed, learning_rate=learning_rate)
    model = opened.base_model()
    set_dropout(model, opened.task.recipe.dropout or 0.0)
    with torch.no_grad():
        objective = SegmentObjective(model, opened.precision, kind)
    evaluation = replace(cast(RunEvaluation, opened.task.evaluation), objective=objective)
    return summary(replace(opened, task=replace(opened.task, evaluation=evaluation)).train(objective))


def summary(metrics: MetricsFile) -> str:
    """Returns the accuracy at each evaluation, that of the blocks at the last one, and the median speed."""
    lines = list(metrics.lines())
    last = [line for line in lines if isinstance(line, EvaluationMetrics)][-1]
    speeds = sorted(line.tokens_per_second for line in lines if isinstance(line, TrainingMetrics))
    blocks = " / ".join(f"{block.accuracy:.2f}" for block in last.held_out.blocks)
    return f"{curve(metrics)}; by block {blocks}; {speeds[len(speeds) // 2]:,.0f} tokens/s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=get_args(Kind))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    chosen = parser.parse_args()
    print(chosen.kind, chosen.seed, chosen.learning_rate, measure(**vars(chosen)))
