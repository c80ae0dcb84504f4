"""The first global batch of a resumed run: longmlm compared with skipping batches, as transformers' Trainer does.

longmlm computes which rows follow the cursor. The Trainer draws the order of the epoch and goes through the batches
that the run has consumed, without reading their rows (accelerate.skip_first_batches). Both open the same folder of
rows, repeated until there are 12 million, and read, mask and collate the batch after the first ten million. The second
comparison is between longmlm after ten million rows and after ten. A figure is the number of tokens in that batch,
divided by the seconds since the rows were opened.

    python benchmarks/start_up.py [--quick]
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import skip_first_batches
from paired import Comparison, Way, in_a_process, run
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longmlm.batches.steps import Recipe, StepBatches
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import Row, Rows, open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import Masking
from longmlm.settings.prepare import PrepareRecipe, Source

MODEL, TEXT, LENGTH = "src/longmlm/bundled/roberta-mini", "src/longmlm/bundled/text/demo.jsonl", 512
NUM_ROWS, EARLY, LATE = 12_000_000, 10, 10_000_000
ROWS_PER_STEP = 10


@dataclass(frozen=True, slots=True)
class ManyRows:
    """Rows that are repeated until there are NUM_ROWS."""

    rows: Rows

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row_id: int) -> Row:
        return self.rows[row_id % len(self.rows)]


def make_rows(folder: Path) -> None:
    """Makes the folder of rows."""
    source = Source(files=(TEXT,))
    recipe = PrepareRecipe(tokenizer=MODEL, sources=(source,), row_length=LENGTH, held_out_fraction=0.1)
    prepare_rows(recipe, load_vocabulary(MODEL), folder)


def ours(folder: Path, cursor: int) -> Callable[[], int]:
    """Returns a function that opens the rows and makes the global batch after `cursor` rows."""
    vocabulary = load_vocabulary(MODEL)
    recipe = Recipe(0, ROWS_PER_STEP, Masking(), vocabulary.maskable, vocabulary.special.pad)

    def work() -> int:
        rows: Any = ManyRows(open_rows(folder, "train", verified=False))
        batches = StepBatches(rows, recipe, 0, 1, ROWS_PER_STEP)[cursor]
        return sum(batch.num_tokens for batch in batches)

    return work


class InputIds(Dataset[dict[str, list[int]]]):
    """The rows in the format of run_mlm.py."""

    def __init__(self, rows: ManyRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[index].input_ids.tolist()}


def theirs(folder: Path, cursor: int) -> Callable[[], int]:
    """Returns a function that opens the rows, skips the batches of `cursor` rows and makes the next one."""
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    collator: Any = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def work() -> int:
        rows = ManyRows(open_rows(folder, "train", verified=False))
        loader = DataLoader(InputIds(rows), ROWS_PER_STEP, shuffle=True, collate_fn=collator)
        batch = next(iter(skip_first_batches(loader, cursor // ROWS_PER_STEP)))
        return int(batch["attention_mask"].sum())

    return work


def comparisons(folder: Path) -> list[Comparison]:
    """Returns both comparisons."""
    late = Way("longmlm, after 10,000,000 rows", partial(ours, folder, LATE))
    skipping = Way("Trainer, after 10,000,000 rows", partial(theirs, folder, LATE))
    early = Way("longmlm, after 10 rows", partial(ours, folder, EARLY))
    shape = f"first batch of {ROWS_PER_STEP} x {LENGTH} tokens, of {NUM_ROWS:,} rows"
    return [Comparison(shape, late, skipping, aim=10.0), Comparison(shape, late, early, aim=0.8)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows"
        in_a_process(make_rows, rows)
        run("start-up", __doc__ or "", comparisons(rows), comparisons(rows))
