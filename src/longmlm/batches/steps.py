"""The micro-batches of each step: sampling, masking and collating for one rank."""

from dataclasses import dataclass

from torch.utils.data import Dataset

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import mask_row
from longmlm.batches.sampling import Draw, global_batch, micro_batches
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Maskable, Vocabulary
from longmlm.errors import DataError, TrainingError
from longmlm.settings.masking import Masking


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the batches of a run, whatever runs it."""

    seed: int
    rows_per_step: int
    masking: Masking
    vocabulary: Maskable
    pad: int


def check_rows_fit_model(rows: Rows, vocabulary: Vocabulary, num_positions: int | None = None) -> None:
    """Raises DataError when rows were made by another tokenizer, or are longer than `num_positions`."""
    if not rows.is_made_by(vocabulary):
        raise DataError(
            f"the rows were made by another tokenizer than that of {vocabulary.name}: prepare them with its own"
        )
    if num_positions is not None and rows.row_length > num_positions:
        raise DataError(
            f"the rows have {rows.row_length} tokens, {vocabulary.name} reads {num_positions}: extend it first, or "
            "prepare shorter rows"
        )


def rows_per_step(batch_tokens: int, rows: Rows, num_processes: int) -> int:
    """Returns the rows whose mean number of tokens makes a global batch of `batch_tokens`.

    Raises TrainingError when that leaves a process without a row.
    """
    num_rows = round(batch_tokens / (rows.row_length * rows.mean_fill))
    if num_rows < num_processes:
        raise TrainingError(
            f"batch_tokens = {batch_tokens} gives {num_rows} rows of {rows.row_length} for {num_processes} processes: "
            f"set it to {num_processes * rows.row_length} at least"
        )
    return num_rows


@dataclass(frozen=True, slots=True)
class StepBatches(Dataset[tuple[MlmBatch, ...]]):
    """Map-style data set from the cursor at a step's start to this process' micro-batches of that step."""

    rows: Rows
    recipe: Recipe
    rank: int
    num_processes: int
    rows_per_micro_batch: int

    @property
    def rows_per_step(self) -> int:
        """Rows of a global batch."""
        return self.recipe.rows_per_step

    def __getitem__(self, index: int) -> tuple[MlmBatch, ...]:
        recipe = self.recipe
        draw = global_batch(index, recipe.rows_per_step, len(self.rows), recipe.seed)
        shares = micro_batches(draw, self.rank, self.num_processes, self.rows_per_micro_batch)
        return tuple(self._masked(share) for share in shares)

    def _masked(self, draw: Draw) -> MlmBatch:
        recipe = self.recipe
        masked = [
            mask_row(self.rows.tokens(row_id), recipe.vocabulary, recipe.masking, recipe.seed, epoch, row_id)
            for row_id, epoch in zip(draw.row_ids.tolist(), draw.epochs.tolist(), strict=True)
        ]
        return collate(masked, recipe.pad, draw.row_ids.tolist())
