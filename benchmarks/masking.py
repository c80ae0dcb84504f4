"""Speed of dynamic masking of rows of 1536 tokens: a pure function of seed, epoch and row, and transformers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from paired import Way, compare
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longmlm.batches.collate import collate
from longmlm.batches.masking import mask_row
from longmlm.data.rows import Row
from longmlm.data.vocabulary import load_vocabulary
from longmlm.settings.masking import Masking

MODEL = "src/longmlm/bundled/roberta-mini"
NUM_ROWS, ROW_LENGTH, ROWS_PER_BATCH = 1024, 1536, 16


def rows() -> np.ndarray:
    """Returns random rows of ordinary tokens."""
    return np.random.default_rng(0).integers(300, 8000, (NUM_ROWS, ROW_LENGTH))


def row_of(input_ids: np.ndarray) -> Row:
    """Returns a row of one document."""
    return Row(input_ids, np.array([1]), np.array([0]))


def ours() -> Callable[[], int]:
    """Returns a function that masks and collates all rows, batch by batch."""
    tokens, vocabulary, masking = rows(), load_vocabulary(MODEL), Masking()
    maskable = vocabulary.maskable

    def work() -> int:
        for first in range(0, NUM_ROWS, ROWS_PER_BATCH):
            batch = range(first, first + ROWS_PER_BATCH)
            masked = [mask_row(row_of(tokens[row_id]), maskable, masking, 0, 0, row_id) for row_id in batch]
            collate(masked, vocabulary.special.pad)
        return tokens.size

    return work


def theirs() -> Callable[[], int]:
    """Returns a function that does the same with DataCollatorForLanguageModeling."""
    tokens = rows()
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def work() -> int:
        for first in range(0, NUM_ROWS, ROWS_PER_BATCH):
            collator([{"input_ids": tokens[row_id]} for row_id in range(first, first + ROWS_PER_BATCH)])
        return tokens.size

    return work


if __name__ == "__main__":
    compare("masking", Way("longmlm", ours), Way("DataCollatorForLanguageModeling", theirs))
