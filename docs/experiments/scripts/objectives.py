"""Compares two auxiliary objectives with plain MLM: does either recover accuracy in fewer tokens?

    longmlm run demo FILE.toml --output FOLDER --until prepare
    python docs/experiments/scripts/objectives.py penalty FOLDER --seed 42

`penalty` subtracts 8 from the attention logits of token pairs in different blocks. `teacher` adds to the loss the
distance between the model's last hidden states and those of the base model, which is run on windows of the row. The
weight of both falls linearly to 0 over the first half of the steps, so that the evaluated and exported model is a stock
model. `mlm` is plain MLM.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import torch
from jaxtyping import Float, Int64
from runs import OpenRun, curve
from torch import Tensor
from transformers import PreTrainedModel

from longmlm.batches.collate import MlmBatch, Target
from longmlm.batches.steps import StepBatches
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.model.architecture import architecture_of
from longmlm.model.mlm import LossSum, MlmObjective
from longmlm.settings.pretrain import ComputePrecision

Kind = Literal["mlm", "penalty", "teacher"]
PENALTY = 8.0  # subtracted from logits
TEACHER_WEIGHT = 1.0  # factor on the relative squared distance between hidden states
FADING_SHARE = 0.5  # share of the steps over which the weight falls to 0


class FadingObjective(MlmObjective):
    """MLM with a penalty or a teacher whose weight falls from 1 to 0 over the first `num_fading` micro-batches."""

    def __init__(
        self, model: PreTrainedModel, base: PreTrainedModel, precision: ComputePrecision, kind: Kind, num_fading: int
    ) -> None:
        super().__init__(model, precision)
        self.kind, self.num_fading, self.num_seen = kind, num_fading, 0
        self.teacher = [architecture_of(base.eval()).encoder]  # in a list, so that it is not registered as a submodule
        self.num_base_positions = architecture_of(base).num_positions or 0

    @property
    def reads_packed_batches(self) -> bool:
        """False: the mask is for padded batches."""
        return False

    @property
    def weight(self) -> float:
        """Weight of the penalty or the teacher in the current micro-batch."""
        return 0.0 if self.kind == "mlm" else max(0.0, 1 - self.num_seen / self.num_fading)

    def forward(self, batch: MlmBatch) -> dict[Target, LossSum]:
        """Returns the loss sum, including the teacher's term, and the number of correct predictions."""
        sums: dict[Target, LossSum] = super().forward(batch)
        if self.kind == "teacher" and self.weight:
            term = TEACHER_WEIGHT * len(batch.labels) * self._distance(batch, self.last_hidden.float())
            loss, num_correct = sums["mlm"]
            sums = {"mlm": LossSum(loss + self.weight * term, num_correct)}
        self.num_seen += 1
        return sums

    def hidden_states(self, batch: MlmBatch) -> Float[Tensor, "rows length width"]:
        """Returns the last hidden states, and keeps them for the teacher's term."""
        self.last_hidden = super().hidden_states(batch)
        return self.last_hidden

    def attention_mask(self, batch: MlmBatch) -> Tensor | None:
        """Returns the additive attention mask with the penalty, or the padding mask once the penalty is 0."""
        if self.kind != "penalty" or not self.weight:
            return super().attention_mask(batch)
        block = torch.arange(batch.input_ids.shape[1]) // self.num_base_positions
        added = -self.weight * PENALTY * (block.unsqueeze(0) != block.unsqueeze(1)).float()
        added = added.expand(len(batch.input_ids), 1, -1, -1)
        if batch.attention_mask is not None:
            added = added.masked_fill(~batch.attention_mask[:, None, None], torch.finfo(torch.float32).min)
        return added

    def _distance(self, batch: MlmBatch, hidden: Float[Tensor, "rows length width"]) -> Tensor:
        """Returns the mean squared distance to the base model's hidden states, relative to their variance."""
        length, (num_rows, row_length) = self.num_base_positions - 2, batch.input_ids.shape
        is_token = torch.ones_like(batch.input_ids, dtype=torch.bool)
        is_token = is_token if batch.attention_mask is None else batch.attention_mask
        first, total = batch.input_ids[:, :1], hidden.new_zeros(())
        count = 0
        for begin in range(1, row_length - 1, length):
            end = min(begin + length, row_length - 1)
            window = self._window(batch.input_ids, first, begin, end)
            window_is_token = is_token[:, begin:end]
            special_mask = torch.ones(num_rows, 1, dtype=torch.bool)
            with torch.no_grad():
                mask = torch.cat([special_mask, window_is_token, special_mask], dim=1).long()
                teacher_hidden = (
                    self.teacher[0](input_ids=window, attention_mask=mask).last_hidden_state[:, 1:-1].float()
                )
            error = (hidden[:, begin:end] - teacher_hidden).square().mean(-1) / teacher_hidden.var()
            total, count = total + (error * window_is_token).sum(), count + int(window_is_token.sum())
        return total / count

    def _window(
        self, input_ids: Int64[Tensor, "rows length"], first: Int64[Tensor, "rows 1"], begin: int, end: int
    ) -> Int64[Tensor, "rows window"]:
        """Returns tokens `begin` to `end - 1` of each row, with a special token before and after."""
        config = self.model.config
        last = first.new_full(first.shape, config.eos_token_id or config.sep_token_id)
        return torch.cat([first, input_ids[:, begin:end], last], dim=1)


def measure(kind: Kind, folder: Path, seed: int) -> str:
    """Trains one run as the pipeline's pretrain stage does, and returns its held-out accuracies by step."""
    opened = OpenRun.of(folder, f"{kind}-{seed}", seed=seed)
    task, base = opened.task, opened.base_model()
    per_step = -(-task.batches.rows_per_step // task.batches.rows_per_micro_batch)
    num_fading = round(FADING_SHARE * task.recipe.num_steps * per_step)
    pad = vocabulary_of_pretrained(task.record.tokenizer, opened.config.run).special.pad
    batches = cast(StepBatches, task.batches)
    task = replace(task, batches=replace(batches, recipe=replace(batches.recipe, pad=pad)))
    objective = FadingObjective(opened.run.backend.objective.model, base, opened.precision, kind, num_fading)
    return curve(replace(opened, task=task).train(objective))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objective", choices=("mlm", "penalty", "teacher"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    print(options.objective, options.seed, measure(cast(Kind, options.objective), options.folder, options.seed))
