"""Examples of a model's predictions: what it fills in for masks near the end of long held-out rows."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Int64
from transformers import PreTrainedTokenizerBase

from longmlm.artifacts.accuracy import FilledMask
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import SpecialTokens
from longmlm.data.vocabulary import as_written, continuation
from longmlm.evaluation.frozen import FrozenRows
from longmlm.evaluation.measure import inference, row_logits
from longmlm.model.mlm import MlmObjective

LATE = 0.9
NUM_GUESSES = 3
CONTEXT_TOKENS = 60
CHARACTERS_BEFORE, CHARACTERS_AFTER = 120, 60
LONGEST_WORD = 20


def filled_masks(
    objective: MlmObjective, tokenizer: PreTrainedTokenizerBase, frozen: FrozenRows, num_examples: int
) -> list[FilledMask]:
    """Returns the model's predictions at the last masked position of nearly full rows, evenly spread over all rows.

    The model reads the whole row under its frozen mask. Where too few rows qualify, there are fewer examples.
    """
    examples, text_of = [], partial(continuation, partial(_decoded, tokenizer))
    with inference(objective):
        for row_id, masked, position in _late_masks(frozen, num_examples):
            tokens = frozen.rows[row_id].input_ids
            row = MaskedRow(masked.row, np.array([position]), tokens[[position]])
            logits = row_logits(objective, row, frozen.special.pad)[0]
            probabilities, guesses = logits.softmax(-1).topk(NUM_GUESSES)
            before, after = _context(tokens, position, frozen.special)
            true_id = int(tokens[position])
            words_before = _last_words(text_of(before[:1], before[1:]), CHARACTERS_BEFORE)
            words_after = _last_words(text_of([*before, true_id], after)[::-1], CHARACTERS_AFTER)[::-1]
            texts = [text_of(before, [guess]) for guess in guesses.tolist()]
            guessed = tuple(zip(texts, probabilities.tolist(), strict=True))
            truth = text_of(before, [true_id])
            examples.append(FilledMask(row_id, position, words_before, words_after, truth, guessed))
    return examples


def _late_masks(frozen: FrozenRows, num_examples: int) -> Iterator[tuple[int, MaskedRow, int]]:
    """Yields the first long row with a mask in its last tenth from each of `num_examples` equal parts of the rows."""
    row_ids = frozen.row_ids
    borders = [part * len(row_ids) // num_examples for part in range(num_examples + 1)]
    for start, end in pairwise(borders):
        for row_id in row_ids[start:end]:
            masked = frozen.masked(row_id)
            num_tokens = len(masked.row)
            positions = masked.selected[masked.row.input_ids[masked.selected] == frozen.special.mask]
            is_late = len(positions) > 0 and positions[-1] >= LATE * num_tokens
            if is_late and num_tokens >= LATE * frozen.rows.row_length:
                yield row_id, masked, int(positions[-1])
                break


def _context(
    tokens: Int64[np.ndarray, " tokens"], position: int, special: SpecialTokens
) -> tuple[list[int], list[int]]:
    """Returns the tokens of the same document before and after `position`.

    The very first one is not shown: it only decides about white space before the second.
    """
    borders = np.flatnonzero(np.isin(tokens, (special.cls, special.sep)))
    next_border = int(np.searchsorted(borders, position))
    start = max(int(borders[next_border - 1]), position - CONTEXT_TOKENS)
    end = min(int(borders[next_border]), position + 1 + CONTEXT_TOKENS)
    return tokens[start:position].tolist(), tokens[position + 1 : end].tolist()


def _decoded(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    return as_written(tokenizer.backend_tokenizer, str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)))


def _last_words(text: str, num_characters: int) -> str:
    """Returns the end of a text, starting at a word where the language separates words by spaces."""
    kept = text[-num_characters:]
    partial_word, space, rest = kept.partition(" ")
    return rest if kept != text and space and len(partial_word) < LONGEST_WORD else kept
