"""Trains a long model mostly on short rows: every tenth step has long rows, the others rows of the base model's length.

    longmlm run demo docs/experiments/mini.toml --output LONG --until prepare
    longmlm prepare demo --recipe.row-length 128 --output SHORT
    python docs/experiments/scripts/mixed_lengths.py LONG SHORT --seed 42

All steps have about the same number of tokens. `--long-every 1` trains on long rows only.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from runs import OpenRun, curve

from longmlm.batches.collate import MlmBatch
from longmlm.batches.sampling import rows_per_step
from longmlm.batches.steps import StepBatches
from longmlm.data.rows import open_named_rows


@dataclass(frozen=True, slots=True)
class MixedBatches(StepBatches):
    """Steps of long rows, and in between steps of short ones; the cursor counts long rows."""

    short: StepBatches
    long_every: int

    def __getitem__(self, index: int) -> tuple[MlmBatch, ...]:
        step = index // self.rows_per_step
        if step % self.long_every == 0:
            return StepBatches.__getitem__(self, index)
        return self.short[step * self.short.rows_per_step]


def measure(folder: Path, short: Path, seed: int, long_every: int) -> str:
    """Trains one run as the pipeline's pretrain stage does, and returns its held-out accuracies by step."""
    opened = OpenRun.of(folder, f"long-every-{long_every}-{seed}", seed=seed)
    long, rows = opened.task.batches, open_named_rows(str(short), "train")
    num_rows = rows_per_step(opened.config.recipe.batch_tokens, rows.row_length, rows.mean_fill, 1)
    per_micro_batch = long.rows_per_micro_batch * long.rows.row_length // rows.row_length
    drawn = replace(long.recipe, rows_per_step=num_rows)
    batches = MixedBatches(
        rows=long.rows,
        recipe=long.recipe,
        rank=0,
        num_processes=1,
        rows_per_micro_batch=long.rows_per_micro_batch,
        short=StepBatches(rows, drawn, 0, 1, per_micro_batch),
        long_every=long_every,
    )
    return curve(replace(opened, task=replace(opened.task, batches=batches)).train())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("short", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--long-every", type=int, default=10)
    options = parser.parse_args()
    print(options.long_every, options.seed, measure(options.folder, options.short, options.seed, options.long_every))
