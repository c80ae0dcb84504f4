"""The micro-batches of each step: sampling, masking and collation for one rank.

A global batch of 13 rows on 2 ranks, with 3 rows per micro-batch: rank 0 takes rows 0 to 5, rank 1 rows 6 to 12. The
larger share needs 3 micro-batches, so both ranks run 3, of 2 2 2 and of 3 2 2 rows: ranks that run in lockstep must
call the model equally often. A rank's rows are sorted by length first: rows of 9 4 8 3 tokens become
micro-batches 9 8 and 4 3, with 2 tokens of padding; 9 4 and 8 3 would need 10.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from torch.utils.data import Dataset

from longmlm.artifacts.rows import check_has_pairs, check_rows_fit_positions
from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import Pairing
from longmlm.batches.sampling import Mixture, micro_batches, mixture_of, rows_after, rows_per_step, share_of_rank
from longmlm.data.row import Maskable, Row
from longmlm.data.rows import Rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError, counted
from longmlm.settings.masking import Masking, PairKind
from longmlm.settings.prepare import is_segmented
from longmlm.settings.pretrain import PretrainRecipe

NOTED_DEVIATION = 0.1  # relative difference between batch_tokens and the tokens of a global batch


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the global batches depend on, except for the rows; without `pad`, micro-batches are packed.

    Without a mixture, every row is drawn equally often; without a pairing, rows are read as they are.
    `isolates_documents` is for `collate`. Epochs are counted from `first_epoch` for masks and pairs, so that they
    differ from those of the run that this one starts from.
    """

    seed: int
    rows_per_step: int
    masking: Masking
    vocabulary: Maskable
    pad: int | None
    mixture: Mixture | None = None
    isolates_documents: bool = False
    pairing: Pairing | None = None
    first_epoch: int = 0

    @classmethod
    def of(
        cls, recipe: PretrainRecipe, rows: Rows, vocabulary: Vocabulary, num_processes: int, first_epoch: int
    ) -> Self:
        """Returns what the settings mean for these rows; a step has as many as hold batch_tokens at their mean fill."""
        mixture = mixture_of(recipe.weights, rows.manifest.sources("train"))
        mean_fill = rows.mean_fill * (mixture.fill if mixture else 1)
        return cls(
            seed=recipe.seed,
            rows_per_step=rows_per_step(recipe.batch_tokens, rows.row_length, mean_fill, num_processes),
            masking=recipe.masking,
            vocabulary=vocabulary.maskable_in(recipe.masking.unit),
            pad=vocabulary.special.pad,
            mixture=mixture,
            isolates_documents=recipe.isolate_documents,
            pairing=Pairing(recipe.pairs.kind, vocabulary.special) if recipe.pairs else None,
            first_epoch=first_epoch,
        )

    def tokens_per_step(self, rows: Rows) -> int:
        """Returns about how many tokens a global batch has, without padding."""
        return round(self.rows_per_step * rows.row_length * rows.mean_fill * (self.mixture.fill if self.mixture else 1))


def check_rows_fit_model(
    rows: Rows,
    vocabulary: Vocabulary,
    num_positions: int | None = None,
    name: str | None = None,
    pairs: PairKind | None = None,
) -> None:
    """Raises DataError when rows were made with a different tokenizer, or are longer than `num_positions`.

    Also raises it for rows with ids that the tokenizer does not have, or that give no pairs of this kind. The message
    calls the model `name`, by default as its tokenizer.
    """
    if rows.manifest.plan.tokenizer_fingerprint != vocabulary.fingerprint:
        raise DataError(
            f"the rows were made with another tokenizer, not with that of {vocabulary.name}: prepare rows with that one"
        )
    rows.check_tokens(vocabulary.size, vocabulary.special)
    if pairs:
        check_has_pairs(rows.num_documents_with_pairs, pairs, rows.split)
    if num_positions is not None:
        check_rows_fit_positions(rows.row_length, num_positions, name or vocabulary.name)


def batch_notes(recipe: PretrainRecipe, rows: Rows, num_rows: int, num_tokens: int) -> list[str]:
    """Returns notes on the global batches, of `num_rows` whole rows with `num_tokens`: on their size and on words."""
    notes = []
    if abs(num_tokens - recipe.batch_tokens) > NOTED_DEVIATION * recipe.batch_tokens:
        batch = f"a global batch of {counted(num_rows, 'whole row')} has {num_tokens:,} tokens"
        notes.append(f"batch_tokens = {recipe.batch_tokens:,}, but {batch}")
    plan, unit = rows.manifest.plan, recipe.masking.unit
    if unit != "token" and plan.words is None and any(is_segmented(source.language) for source in plan.sources):
        notes.append(
            f'masking.unit = "{unit}": each Chinese character counts as a word, and so does a token of several, since '
            'the rows do not record words: to mask words, prepare rows with words = "rjieba"'
        )
    return notes


@dataclass(frozen=True, slots=True)
class StepBatches(Dataset[tuple[MlmBatch, ...]]):
    """Map-style dataset of a rank's micro-batches, indexed by the cursor: the rows consumed before a step."""

    rows: Rows
    recipe: Recipe
    rank: int
    num_processes: int
    rows_per_micro_batch: int

    @property
    def num_rows(self) -> int:
        """The number of rows that are drawn from."""
        return len(self.rows)

    @property
    def description(self) -> str:
        """How many rows there are, how long they may be, and how full they are."""
        return f"{len(self.rows):,} of {self.rows.row_length}, {self.rows.mean_fill:.1%} full"

    @property
    def rows_per_step(self) -> int:
        """Rows of a global batch."""
        return self.recipe.rows_per_step

    def in_micro_batches_of(self, num_rows: int) -> Self:
        """Returns the same global batches in micro-batches of at most `num_rows` rows."""
        return replace(self, rows_per_micro_batch=num_rows)

    def __getitem__(self, index: int) -> tuple[MlmBatch, ...]:
        recipe = self.recipe
        draw = rows_after(index, self.rows_per_step, len(self.rows), recipe.mixture, recipe.seed)
        share = share_of_rank(draw, self.rank, self.num_processes)
        masked = [
            mask_row(self._row(row_id, epoch), recipe.vocabulary, recipe.masking, recipe.seed, epoch, row_id)
            for row_id, epoch in zip(share.row_ids.tolist(), (recipe.first_epoch + share.epochs).tolist(), strict=True)
        ]
        lengths = np.array([len(one.row) for one in masked])
        parts = micro_batches(lengths, self.rows_per_step, self.num_processes, self.rows_per_micro_batch)
        return tuple(
            collate(
                [masked[index] for index in part],
                recipe.pad,
                share.row_ids[part].tolist(),
                recipe.isolates_documents,
            )
            for part in parts
        )

    def _row(self, row_id: int, epoch: int) -> Row:
        pairing = self.recipe.pairing
        return pairing.pair(self.rows, row_id, self.recipe.seed, epoch) if pairing else self.rows[row_id]
