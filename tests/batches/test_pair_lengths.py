"""Pairs: their labels do not follow from the lengths of segments and of sentences, in rows packed from documents."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from longmlm.batches.pairs import NO_PAIR, PairedRow, Pairing
from longmlm.data.packing import OpenRow, TokenizedDocument, pack_document
from longmlm.data.row import LooseRows, SpecialTokens, TokenizedSentence
from longmlm.settings.masking import PairKind
from longmlm.settings.prepare import PackingMode

SPECIAL = SpecialTokens(cls=1, sep=2, mask=4, pad=0, unk=3, all=(0, 1, 2, 3, 4))
SENTENCES = {"en": (3.1, 0.55), "zh": (3.5, 0.65)}  # mean and deviation of the logarithm of their numbers of tokens
NUM_ROWS = {64: 1_600, 128: 1_600, 256: 700, 512: 400}


def packed(language: str, row_length: int, mode: PackingMode = "doc-sentences", share: float = 0.0) -> LooseRows:
    """Returns rows of documents whose sentences have lengths as in this language, up to two thirds of a row."""
    generator, rows, number = np.random.default_rng(row_length), [], 0
    row = OpenRow(row_length - 3, SPECIAL, has_pairs=True, short_row_share=share)
    while len(rows) < NUM_ROWS[row_length]:
        lengths = generator.lognormal(*SENTENCES[language], size=generator.integers(20, 120)).astype(int)
        lengths = lengths.clip(2, 2 * row_length // 3)
        sentences = [TokenizedSentence(np.full(length, 7, dtype=np.uint32)) for length in lengths]
        rows += pack_document(row, TokenizedDocument(sentences, 0, number), mode)
        number += 1

    class Rows(LooseRows):
        pass

    Rows.row_length = row_length
    return Rows(tuple(rows))


def lengths_of(pair: PairedRow) -> tuple[list[int], list[int]]:
    """Returns the numbers of tokens of both segments, and of the first and the last sentence of each."""
    starts, border = pair.sentence_starts, pair.second_start
    first, second = starts[starts < border].tolist(), starts[starts >= border].tolist()
    sentences = [
        [end - begin for begin, end in pairwise(one)] for one in ([*first, border - 1], [*second, len(pair) - 1])
    ]
    segments = [border - 2, len(pair) - 1 - border]
    return segments, [*segments, *(one[index] for one in sentences for index in (0, -1))]


def right_by_lengths(rows: LooseRows, kind: PairKind) -> tuple[list[float], float]:
    """Returns how often trees predict the label, from two and from six lengths, and what chance may add to a half."""
    pairing, pairs = Pairing(kind, SPECIAL), {}
    for epoch in range(3):
        pairs |= {(row_id, epoch): pairing.pair(rows, row_id, 5, epoch) for row_id in range(len(rows))}
    pairs = {key: pair for key, pair in pairs.items() if pair.label != NO_PAIR}
    labels, groups = np.array([pair.label for pair in pairs.values()]), np.array([row_id for row_id, _ in pairs])
    assert len(labels) > 600 and abs(labels.mean() - 0.5) < 0.05
    right = []
    for features in zip(*(lengths_of(pair) for pair in pairs.values()), strict=True):
        tree = DecisionTreeClassifier(max_depth=4, min_samples_leaf=30, random_state=0)
        right.append((cross_val_predict(tree, features, labels, groups=groups, cv=GroupKFold(5)) == labels).mean())
    return right, 4 * 0.5 / len(labels) ** 0.5


@pytest.mark.parametrize(("row_length", "language"), [(64, "en"), (128, "zh"), (256, "en"), (512, "zh")])
def test_the_order_of_segments_does_not_follow_from_lengths(row_length: int, language: str) -> None:
    right, chance = right_by_lengths(packed(language, row_length), "sop")
    assert max(right) < 0.5 + chance


@pytest.mark.parametrize(("mode", "share"), [("sentence-pair", 0.0), ("doc-sentences", 0.2)])
def test_nor_does_it_in_pairs_of_sentences_and_beside_short_rows(mode: PackingMode, share: float) -> None:
    right, chance = right_by_lengths(packed("en", 128, mode, share), "sop")
    assert max(right) < 0.5 + chance


@pytest.mark.parametrize("row_length", [min(NUM_ROWS), max(NUM_ROWS)])
def test_that_b_is_random_does_not_follow_from_the_lengths_of_segments(row_length: int) -> None:
    (of_segments, _), chance = right_by_lengths(packed("en", row_length), "nsp")
    assert of_segments < 0.5 + chance + 0.02  # B is only about as long as the one that it replaces
