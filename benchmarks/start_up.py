"""How long a run takes to resume: its first global batch, and the time from its launch to the end of its first step.

longmlm computes which rows follow the cursor. The Trainer draws the order of the epoch and goes through the batches
that the run has consumed, without reading their rows (accelerate.skip_first_batches). Both open the same folder of
rows, repeated until there are 12 million, and read, mask and collate the batch after the first ten million. The second
comparison is between longmlm after ten million rows and after ten. A figure is the number of tokens in that batch,
divided by the seconds since the rows were opened.

The third comparison resumes a run of the bundled model with `longmlm pretrain`, after ten million rows and after ten,
and takes the seconds from launch until the first step after resuming is logged. --quick leaves it out.

    python benchmarks/start_up.py [--quick]
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import skip_first_batches
from paired import Comparison, Way, in_a_process, run, seconds
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longmlm.artifacts import artifact
from longmlm.artifacts.run import CheckpointState
from longmlm.batches.steps import Recipe, StepBatches
from longmlm.data.engine import prepare_rows
from longmlm.data.row import Row
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import load_vocabulary
from longmlm.folders import rewritten_folder
from longmlm.settings.masking import Masking
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.training.run_folder import checkpoint_folder

MODEL, TEXT = "src/longmlm/bundled/roberta-mini", "src/longmlm/bundled/text/demo.jsonl"
LENGTH = 128  # tokens; the most that the bundled model reads
NUM_ROWS, EARLY, LATE = 12_000_000, 10, 10_000_000
ROWS_PER_STEP = 10
NUM_STEPS = 1000  # of the run that is resumed; it is killed long before


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


def pretrain_command(run: Path, rows: Path, more: Mapping[str, float]) -> list[str]:
    """Returns the command that starts or resumes a run of the bundled model; each step is logged."""
    options = {
        "run": run,
        "rows": rows,
        "start.checkpoint": MODEL,
        "recipe.learning-rate": 1e-6,
        "recipe.held-out.max-rows": 1,
        "runtime.log-every-steps": 1,
        **more,
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "longmlm", "pretrain", *arguments]


def train_until(run: Path, rows: Path, last_step: int) -> None:
    """Starts or resumes a run, and kills it once `last_step` is logged; if that is 1, once its checkpoint is saved."""
    save_every = 1 if last_step == 1 else NUM_STEPS
    options = {
        "recipe.num-steps": NUM_STEPS,
        "recipe.batch-tokens": ROWS_PER_STEP * LENGTH,
        "runtime.save-every-steps": save_every,
    }
    command = pretrain_command(run, rows, options)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        is_reached = any(f"step {last_step}/" in line and "loss" in line for line in process.stderr)
        while last_step == 1 and process.poll() is None and not checkpoint_folder(run, 1).exists():
            time.sleep(0.1)
        process.kill()
    for folder in checkpoint_folder(run, 1).parent.iterdir():  # training went on until it was killed
        if folder != checkpoint_folder(run, 1):
            shutil.rmtree(folder)
    if not is_reached:
        raise RuntimeError(f"{' '.join(command)} did not reach step {last_step}")


def launch(run: Path, rows: Path, cursor: int) -> Callable[[], int]:
    """Returns a function that resumes a copy of the run at this cursor, and kills it after one step."""
    resumed = Path(tempfile.mkdtemp()) / "run"
    shutil.copytree(run, resumed)
    with rewritten_folder(checkpoint_folder(resumed, 1)) as unfinished:
        shutil.copytree(checkpoint_folder(run, 1), unfinished, dirs_exist_ok=True)
        saved = artifact.read(CheckpointState, unfinished / CheckpointState.FILE)
        moved = replace(saved, state=replace(saved.state, cursor=cursor))
        artifact.write(unfinished / CheckpointState.FILE, moved)

    def work() -> int:
        train_until(resumed, rows, 2)
        return 0

    return work


def comparisons(folder: Path, run: Path) -> list[Comparison]:
    """Returns the three comparisons; `run` is the folder of a run that has made one step."""
    late = Way("longmlm, after 10,000,000 rows", partial(ours, folder, LATE))
    skipping = Way("Trainer, after 10,000,000 rows", partial(theirs, folder, LATE))
    early = Way("longmlm, after 10 rows", partial(ours, folder, EARLY))
    shape = f"first batch of {ROWS_PER_STEP} x {LENGTH} tokens, of {NUM_ROWS:,} rows"
    launches = [
        Way(f"longmlm, after {cursor:,} rows", partial(launch, run, folder, cursor), seconds)
        for cursor in (LATE, EARLY)
    ]
    return [
        Comparison(shape, late, skipping, aim=10.0),
        Comparison(shape, late, early, aim=0.8),
        Comparison("launch to the first step of the bundled model", *launches, aim=0.9, unit="s"),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        rows, started = Path(scratch) / "rows", Path(scratch) / "run"
        in_a_process(make_rows, rows)
        train_until(started, rows, 1)
        compared = comparisons(rows, started)
        run("start-up", __doc__ or "", compared, compared[:2])
