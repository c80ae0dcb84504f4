"""Held-out rows and a model to examples: what it fills in near the end of long rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int64
from transformers import PreTrainedTokenizerBase

from longmlm.batches.collate import collate
from longmlm.batches.masking import MaskedRow
from longmlm.evaluation.frozen import FrozenRows
from longmlm.model.mlm import MlmObjective

LATE = 0.9
NUM_GUESSES = 3
NEAR_TOKENS = 60
CHARACTERS_BEFORE, CHARACTERS_AFTER = 120, 60
LONGEST_WORD = 20


@dataclass(frozen=True, slots=True)
class FilledMask:
    """A masked place of a row, the true text around it, what stood there, and the likeliest tokens with probabilities.

    Texts keep their white space, so that `before + truth + after` reads on, and so does a guess in truth's place.
    """

    row_id: int
    place: int
    before: str
    after: str
    truth: str
    guesses: tuple[tuple[str, float], ...]


@torch.inference_mode()
def filled_masks(
    objective: MlmObjective,
    tokenizer: PreTrainedTokenizerBase,
    frozen: FrozenRows,
    num_examples: int,
    device: torch.device,
) -> list[FilledMask]:
    """Returns what the model fills in at the last masked place of rows that are nearly full, evenly spread.

    Each row is seen whole under its frozen mask. There are fewer examples where rows that serve are fewer. The model
    is put back into the mode that it was in.
    """
    was_training = objective.training
    objective.eval()
    found = []
    for row_id, masked, place in _late_masks(frozen, num_examples):
        tokens = frozen.rows[row_id].input_ids
        one = MaskedRow(masked.row, np.array([place]), tokens[[place]])
        logits = objective.logits(collate([one], frozen.special.pad).to(device))[0]
        likeliest = logits.softmax(-1).topk(NUM_GUESSES)
        guesses = list(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
        found.append(_in_words(row_id, place, _around(tokens, place, frozen), guesses, tokenizer))
    objective.train(was_training)
    return found


def _late_masks(frozen: FrozenRows, num_examples: int) -> Iterator[tuple[int, MaskedRow, int]]:
    """Yields the first row of each of `num_examples` shares that is long and has a mask in its last tenth."""
    row_ids = frozen.row_ids
    borders = [share * len(row_ids) // num_examples for share in range(num_examples + 1)]
    for begin, end in pairwise(borders):
        for row_id in row_ids[begin:end]:
            masked = frozen.masked(row_id)
            num_tokens = len(masked.row)
            places = masked.selected[masked.row.input_ids[masked.selected] == frozen.special.mask]
            if num_tokens >= LATE * frozen.rows.row_length and len(places) and places[-1] >= LATE * num_tokens:
                yield row_id, masked, int(places[-1])
                break


def _around(tokens: Int64[np.ndarray, " tokens"], place: int, frozen: FrozenRows) -> tuple[list[int], int, list[int]]:
    """Returns the token between those near it in its document, and one more ahead, which settles white space."""
    borders = np.flatnonzero(np.isin(tokens, (frozen.special.cls, frozen.special.sep)))
    next_border = int(np.searchsorted(borders, place))
    begin = max(int(borders[next_border - 1]), place - NEAR_TOKENS)
    end = min(int(borders[next_border]), place + 1 + NEAR_TOKENS)
    return tokens[begin:place].tolist(), int(tokens[place]), tokens[place + 1 : end].tolist()


def _in_words(
    row_id: int,
    place: int,
    around: tuple[list[int], int, list[int]],
    guesses: Sequence[tuple[int, float]],
    tokenizer: PreTrainedTokenizerBase,
) -> FilledMask:
    head, true_id, tail = around

    def decoded(token_ids: list[int]) -> str:
        return str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))

    def following(earlier: list[int], token_ids: list[int]) -> str:
        text, whole = decoded(earlier), decoded([*earlier, *token_ids])
        return whole.removeprefix(text) if whole.startswith(text) else decoded(token_ids)

    before = _last_words(following(head[:1], head[1:]), CHARACTERS_BEFORE)
    after = _last_words(following([*head, true_id], tail)[::-1], CHARACTERS_AFTER)[::-1]
    named = tuple((following(head, [token_id]), probability) for token_id, probability in guesses)
    return FilledMask(row_id, place, before, after, following(head, [true_id]), named)


def _last_words(text: str, num_characters: int) -> str:
    """Returns the end of a text, from the beginning of a word where words are parted by spaces."""
    kept = text[-num_characters:]
    half, space, rest = kept.partition(" ")
    return rest if kept != text and space and len(half) < LONGEST_WORD else kept
