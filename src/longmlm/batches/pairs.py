"""Pairs of similar texts to train embeddings on, from pairs with scores."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longmlm.batches.examples import Example
from longmlm.errors import DataError, counted


def positive_pairs(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Returns the pairs with a score in the upper half; the target is now two numbers, equal for equal texts.

    The upper half is above the middle between lowest and highest score of these pairs, or above 0.5 where all scores
    are 0 or 1. Scores 0, 1, 2.5, 3 and 5: the middle is 2.5, and the pairs with 3 and 5 are positive. Texts are equal
    if the model reads the same tokens of both. Raises DataError when fewer than two pairs are positive.
    """
    scores = np.array([float(example.target) for example in examples])
    is_binary = bool(np.isin(scores, (0, 1)).all())
    middle = 0.5 if is_binary else (scores.min() + scores.max()) / 2
    numbers: dict[tuple[bytes, ...], int] = {}
    pairs: list[Example] = []
    for example, score in zip(examples, scores, strict=True):
        if score > middle:
            inputs = tuple(ids.tobytes() for ids in example.inputs)
            texts = inputs[: example.num_first], inputs[example.num_first :]
            target = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
            pairs.append(replace(example, target=target))
    if len(pairs) < 2:  # noqa: PLR2004 - each is the other's negative
        raise DataError(
            f"{len(pairs)} of {counted(len(examples), 'training pair')} with a score above {middle:g}: tuning needs at "
            "least 2; add similar pairs, or set frozen = true, which trains nothing"
        )
    return tuple(pairs)
