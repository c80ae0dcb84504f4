"""Dynamic masking of rows of 1536 tokens: longmlm, whose masks depend only on seed, epoch and row, and transformers.

python benchmarks/masking.py [--quick]
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from paired import Comparison, Way, run
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longmlm.batches.collate import collate
from longmlm.batches.masking import mask_row
from longmlm.data.row import Row
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import Masking

MODEL = "src/longmlm/bundled/roberta-mini"
ROW_LENGTH, ROWS_PER_BATCH = 1536, 16


def random_rows(num_rows: int) -> np.ndarray:
    """Returns random rows of ordinary tokens."""
    return np.random.default_rng(0).integers(300, 8000, (num_rows, ROW_LENGTH))


def row_of(input_ids: np.ndarray) -> Row:
    """Returns a row of one document."""
    return Row(input_ids, np.array([1]), np.array([0]))


def ours(num_rows: int) -> Callable[[], int]:
    """Returns a function that masks and collates all rows, batch by batch."""
    tokens, vocabulary, masking = random_rows(num_rows), load_vocabulary(MODEL), Masking()
    maskable = vocabulary.maskable

    def work() -> int:
        for first in range(0, num_rows, ROWS_PER_BATCH):
            batch = range(first, first + ROWS_PER_BATCH)
            masked = [mask_row(row_of(tokens[row_id]), maskable, masking, 0, 0, row_id) for row_id in batch]
            collate(masked, vocabulary.special.pad)
        return tokens.size

    return work


def theirs(num_rows: int) -> Callable[[], int]:
    """Returns a function that does the same with DataCollatorForLanguageModeling."""
    tokens = random_rows(num_rows)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def work() -> int:
        for first in range(0, num_rows, ROWS_PER_BATCH):
            collator([{"input_ids": tokens[row_id]} for row_id in range(first, first + ROWS_PER_BATCH)])
        return tokens.size

    return work


def comparison(num_rows: int) -> Comparison:
    """Returns the comparison on `num_rows` rows."""
    own, peer = (
        Way("longmlm", partial(ours, num_rows)),
        Way("DataCollatorForLanguageModeling", partial(theirs, num_rows)),
    )
    return Comparison(f"{num_rows} rows of {ROW_LENGTH} tokens in batches of {ROWS_PER_BATCH}", own, peer, aim=5)


if __name__ == "__main__":
    run("masking", __doc__ or "", [comparison(1024)], [comparison(128)])
