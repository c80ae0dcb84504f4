"""Which pairs are positive, and which of their texts are equal."""

import numpy as np
import pytest
from longmlm.batches.examples import Example
from longmlm.batches.pairs import positive_pairs

from longmlm.errors import DataError


def pair(number: int, first: list[list[int]], second: list[list[int]], score: float) -> Example:
    inputs = tuple(np.array(ids) for ids in first + second)
    return Example(number, inputs, np.array(score), sum(map(len, inputs)), num_first=len(first))


def pairs_with(*scores: float) -> list[Example]:
    return [pair(number, [[0, number, 1]], [[0, 50 + number, 1]], score) for number, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "positive"),
    [
        ((0, 1, 2.5, 3, 5), [3, 4]),
        ((0, 1, 0, 1, 1), [1, 3, 4]),
        ((1, 1, 1), [0, 1, 2]),
        ((-1, -0.9, 0.1, 0.2, 1), [2, 3, 4]),
        ((2, 2.4, 3, 2.6), [2, 3]),
    ],
)
def test_positive_pairs_are_those_above_the_middle(scores: tuple[float, ...], positive: list[int]):
    assert [example.document for example in positive_pairs(pairs_with(*scores))] == positive


@pytest.mark.parametrize("scores", [(0, 0, 0), (0, 5, 1), (3, 3, 3)])
def test_too_few_positive_pairs(scores: tuple[float, ...]):
    with pytest.raises(DataError, match="of 3 training pairs with a score above"):
        positive_pairs(pairs_with(*scores))


def test_equal_texts_have_equal_numbers():
    """A text of two chunks differs from one of its chunks; order of the texts in a pair does not matter."""
    examples = [
        pair(0, [[0, 5, 1]], [[0, 6, 1], [0, 7, 1]], 1),
        pair(1, [[0, 6, 1], [0, 7, 1]], [[0, 6, 1]], 1),
        pair(2, [[0, 8, 1]], [[0, 5, 1]], 1),
        pair(3, [[0, 5, 1]], [[0, 9, 1]], 0),
    ]
    targets = [example.target.tolist() for example in positive_pairs(examples)]
    assert targets == [[0, 1], [1, 2], [3, 0]]
