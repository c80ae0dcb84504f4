"""Pairs: the worked example, a function of seed, epoch and row, half of them negatives, and no text lost."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.batches.collate import MlmBatch, collate
from longmlm.batches.masking import mask_row
from longmlm.batches.pairs import NO_PAIR, PairedRow, Pairing
from longmlm.batches.sampling import mixture_of
from longmlm.batches.steps import Recipe, StepBatches
from longmlm.data.row import LooseRows, Row, SpecialTokens
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.settings.masking import Masking, PairKind
from tests.batches.test_steps import LAUNCHES
from tests.support.rows import mixed_rows
from tests.support.tiny import World, tiny_rows

CLS, SEP, ROW_LENGTH = 1, 2, 17
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, mask=4, pad=0, unk=3, all=(0, 1, 2, 3, 4))
KINDS = ("nsp", "sop")


class LimitedRows(LooseRows):
    """Rows in memory, of up to 17 tokens with the second separator."""

    row_length = ROW_LENGTH


def row_of(document: int, *sentences: list[int], source: int = 0) -> Row:
    """Returns a row of one document; at each token of an even id a word starts."""
    lengths = np.cumsum([0, *map(len, sentences)])
    tokens = np.array([CLS, *(token for sentence in sentences for token in sentence), SEP])
    return Row(
        input_ids=tokens,
        document_starts=np.array([1]),
        document_sources=np.array([source]),
        document_hashes=np.array([document]),
        sentence_starts=1 + lengths[:-1],
        is_word_start=(tokens % 2 == 0) & (tokens > SEP),
    )


FIRST = row_of(0, [*range(11, 15)], [*range(21, 24)], [31, 32], [*range(41, 46)])
SECOND = row_of(1, [*range(61, 66)], [71, 72, 73], source=3)


SIZES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(1, 6), min_size=1, max_size=6)), min_size=1, max_size=8
)


def rows_of(sizes: list[tuple[int, list[int]]]) -> LimitedRows:
    """Returns rows of these documents and sentences, of up to 14 tokens of text: document 2 has 300 and up."""
    found = []
    for document, lengths in sizes:
        spans = pairwise([0, *np.cumsum(lengths).clip(max=ROW_LENGTH - 3)])
        first = 100 * (document + 1)
        found.append(row_of(document, *([*range(first + begin, first + end)] for begin, end in spans if end > begin)))
    return LimitedRows(tuple(found))


def borders_of(rows: LimitedRows, row_id: int, kind: PairKind) -> list[int]:
    """Returns where B may begin: with SOP, the row before had room for its first sentence as it had for that of A."""
    row, before = rows[row_id], rows[row_id - 1] if row_id else None
    starts = row.sentence_starts.tolist()
    if kind == "nsp" or before is None or before.document_hashes.tolist() != row.document_hashes.tolist():
        return starts[1:]
    has_room = [len(before) + end - start < ROW_LENGTH for start, end in pairwise([*starts, len(row) - 1])]
    return [start for start, fits in zip(starts[1:], has_room[1:], strict=True) if fits == has_room[0]]


def segments(pair: PairedRow) -> tuple[list[int], list[int]]:
    """Returns the tokens of A and B, after a look at the special tokens."""
    ids, border = pair.input_ids.tolist(), pair.second_start
    assert ids[0] == CLS and ids[-1] == SEP and ids[border - 1] == SEP
    assert ids.count(SEP) == (1 if pair.label == NO_PAIR else 2) and ids.count(CLS) == 1
    return ids[1 : border - 1], ids[border:-1]


def test_the_worked_example_gives_each_of_its_pairs() -> None:
    rows, found = LimitedRows((FIRST, SECOND)), {}
    for kind in KINDS:
        for epoch in range(200):
            pair = Pairing(kind, SPECIAL).pair(rows, 0, 7, epoch)
            found[kind, pair.label, *map(tuple, segments(pair))] = pair
    first, second = (*range(11, 15), *range(21, 24)), (31, 32, *range(41, 46))
    in_order = found["nsp", 0, first, second]
    assert in_order.input_ids.tolist() == [CLS, *first, SEP, *second, SEP] and in_order.second_start == 9
    assert in_order.sentence_starts.tolist() == [1, 5, 9, 11] and in_order.document_starts.tolist() == [1]
    random = found["nsp", 1, first, (61, 62, 63, 64, 65)]
    assert len(random) == ROW_LENGTH - 2 and random.second_start == 9
    assert random.document_starts.tolist() == [1, 9] and random.document_sources.tolist() == [0, 3]
    assert random.document_hashes.tolist() == [0, 1] and random.sentence_starts.tolist() == [1, 5, 9]
    assert {b for kind, label, _, b in found if (kind, label) == ("nsp", 1)} == {
        (61, 62, 63, 64, 65),
        (61, 62, 63, 64, 65, 71, 72, 73),  # in place of 3 2 5
    }
    swapped = found["sop", 1, second, first]
    assert swapped.document_starts.tolist() == [1] and swapped.document_sources.tolist() == [0]
    assert swapped.sentence_starts.tolist() == [1, 3, 9, 13]
    splits = {(11, 12, 13, 14), first, (*first, 31, 32)}
    assert {one for kind, label, one, _ in found if label == 0} == splits
    assert {one for kind, label, one, _ in found if kind == "nsp"} == splits
    for pair in (in_order, random, swapped):
        assert pair.is_word_start.tolist() == [token % 2 == 0 and token > SEP for token in pair.input_ids.tolist()]


@settings(deadline=None)
@given(SIZES, st.sampled_from(KINDS), st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_pairs_are_made_of_whole_rows_and_of_other_documents(
    sizes: list[tuple[int, list[int]]], kind: PairKind, seed: int, epoch: int
) -> None:
    rows = rows_of(sizes)
    for row_id, row in enumerate(rows.rows):
        pair = Pairing(kind, SPECIAL).pair(rows, row_id, seed, epoch)
        (first, second), own = segments(pair), row.input_ids[1:-1].tolist()
        assert len(pair) <= ROW_LENGTH
        starts, border = row.sentence_starts.tolist(), 1 + len(first)
        borders = borders_of(rows, row_id, kind)
        if pair.label == NO_PAIR:
            assert (first, second, borders) == (own, [], [])
        elif pair.label == 0:
            assert first + second == own and border in borders
        elif kind == "sop":
            assert second + first == own and 1 + len(second) in borders
        else:
            assert first == own[: len(first)] and border in starts[1:] and second
            assert {token // 100 for token in first} != {token // 100 for token in second}
            others = [(other.input_ids[1:-1].tolist(), other.sentence_starts - 1) for other in rows.rows]
            parts = [
                (tokens[begin : begin + len(second)], begin + len(second) in (*at, len(tokens)))
                for tokens, at in others
                for begin in at.tolist()
            ]
            assert any(second == part and (is_whole or len(pair) == ROW_LENGTH) for part, is_whole in parts)


def test_half_of_the_pairs_are_negatives_anew_in_each_epoch_and_by_each_seed() -> None:
    rows = LimitedRows((FIRST, SECOND) * 50)
    for kind in KINDS:
        labels = np.array(
            [
                [Pairing(kind, SPECIAL).pair(rows, row, seed, epoch).label for row in range(100)]
                for seed in (1, 2)
                for epoch in range(10)
            ]
        )
        lost = 2**-11 * labels.size if kind == "nsp" else 0  # no other document in ten draws
        assert abs(labels.sum() + lost - labels.size / 2) < 4 * (labels.size / 4) ** 0.5
        both = np.array([labels[index] == labels[other] for index in range(20) for other in range(index)])
        assert abs(both.mean(axis=1) - 0.5).max() < 0.3


def test_the_label_does_not_follow_from_the_length_of_the_second_segment() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 8, (400, 2)).tolist()  # rows of two sentences, as in SENTENCE-PAIR
    rows = LimitedRows(tuple(row_of(number, *([7] * length for length in row)) for number, row in enumerate(lengths)))
    pairs = [Pairing("nsp", SPECIAL).pair(rows, row, 1, epoch) for row in range(400) for epoch in range(5)]
    labels = np.array([pair.label for pair in pairs])
    second = np.array([len(pair) - pair.second_start for pair in pairs])
    assert abs(second[labels == 1].mean() - second[labels == 0].mean()) < 0.3
    shares = [np.bincount(second[labels == label], minlength=10) / (labels == label).sum() for label in (0, 1)]
    assert abs(shares[0] - shares[1]).sum() / 2 < 0.1  # what the best guess from the length alone gains over chance


def test_a_pair_stays_in_order_where_there_is_no_other_document() -> None:
    rows = LimitedRows((FIRST, replace(SECOND, document_hashes=FIRST.document_hashes)))
    pairs = [Pairing("nsp", SPECIAL).pair(rows, 0, 3, epoch) for epoch in range(50)]
    assert {pair.label for pair in pairs} == {0}
    assert {one for pair in pairs for one in pair.input_ids.tolist()} == {*FIRST.input_ids.tolist()}


@pytest.fixture(scope="module")
def paired(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rows(tmp_path_factory.mktemp("paired"), world.base, packing="doc-sentences", pairs=True)


@pytest.fixture(scope="module")
def rows(paired: Path) -> Rows:
    return open_rows(paired, "train")


@pytest.fixture(scope="module")
def vocabulary(world: World) -> Vocabulary:
    return load_vocabulary(str(world.base))


def drawn(vocabulary: Vocabulary, kind: PairKind, is_packed: bool = False, **more: object) -> Recipe:
    pad = None if is_packed else vocabulary.special.pad
    return Recipe(5, 13, Masking(), vocabulary.maskable, pad, pairing=Pairing(kind, vocabulary.special), **more)


def as_rows(batch: MlmBatch) -> list[tuple]:
    """Returns each row of a batch: its id, tokens, token types, selected positions, labels, and its pair's label."""
    lengths = batch.row_lengths or [batch.input_ids.shape[1]] * len(batch.row_ids)
    ends = np.cumsum(lengths).tolist()
    by_start = dict(zip(batch.pair_starts.tolist(), batch.pair_labels.tolist(), strict=True))
    mask = torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask
    ids, types, is_token = batch.input_ids.flatten(), batch.token_type_ids.flatten(), mask.flatten()
    assert not types[~is_token].any()
    found = []
    for row_id, end, length in zip(batch.row_ids, ends, lengths, strict=True):
        begin = end - length
        here = (begin <= batch.selected) & (batch.selected < end)
        kept = is_token[begin:end]
        columns = [ids[begin:end][kept], types[begin:end][kept], batch.selected[here] - begin, batch.labels[here]]
        found.append((row_id, *(column.tolist() for column in columns), by_start.pop(begin, NO_PAIR)))
    assert not by_start
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_any_launch_draws_the_same_pairs_padded_or_packed(
    rows: Rows, vocabulary: Vocabulary, kind: PairKind, paired: Path, tmp_path: Path
) -> None:
    mixed = open_rows(mixed_rows(paired, tmp_path / "mixed", 0.7, 0.3), "train")
    mixture = mixture_of({"laws": 3.0}, mixed.manifest.sources("train"))
    for own, weighted in ((rows, None), (mixed, mixture)):
        for cursor in (0, 13, len(rows) - 5):
            found = []
            for is_packed in (False, True):
                recipe = drawn(vocabulary, kind, is_packed, mixture=weighted)
                for num_processes, size in LAUNCHES[:4]:
                    shares = (
                        StepBatches(own, recipe, rank, num_processes, size)[cursor] for rank in range(num_processes)
                    )
                    found.append(sorted(row for share in shares for batch in share for row in as_rows(batch)))
            assert all(one == found[0] for one in found) and len(found[0]) == 13


def test_a_batch_holds_the_pairs_and_masks_of_its_rows(rows: Rows, vocabulary: Vocabulary) -> None:
    pairing, special = Pairing("nsp", vocabulary.special), vocabulary.special
    [batch] = StepBatches(rows, drawn(vocabulary, "nsp"), 0, 1, 13)[26]
    for row_id, tokens, types, selected, labels, label in as_rows(batch):
        pair = pairing.pair(rows, row_id, 5, 0)
        masked = mask_row(pair, vocabulary.maskable, Masking(), 5, 0, row_id)
        assert (tokens, label) == (masked.row.input_ids.tolist(), pair.label)
        assert (selected, labels) == (masked.selected.tolist(), pair.input_ids[masked.selected].tolist())
        assert types == [0] * pair.second_start + [1] * (len(pair) - pair.second_start)
        assert not {*labels} & {special.cls, special.sep}
    assert batch.num_targets == {"mlm": len(batch.labels), "pair": len(batch.pair_labels)}
    plain = collate([mask_row(rows[0], vocabulary.maskable, Masking(), 5, 0, 0)], special.pad)
    assert plain.num_targets.keys() == {"mlm"} and plain.token_type_ids is None


def test_pairs_of_a_split_hold_its_text_and_no_other(rows: Rows, paired: Path, vocabulary: Vocabulary) -> None:
    held_out = open_rows(paired, "held_out")
    of_split = {
        name: {int(one[row].document_hashes[0]) for row in range(len(one))}
        for name, one in (("train", rows), ("held_out", held_out))
    }
    assert not of_split["train"] & of_split["held_out"]
    for name, own in (("train", rows), ("held_out", held_out)):
        pairing, ids = Pairing("nsp", vocabulary.special), range(len(own))
        pairs = [pairing.pair(own, row, 5, epoch) for epoch in range(3) for row in ids]
        assert {hash_ for pair in pairs for hash_ in pair.document_hashes.tolist()} <= of_split[name]
        several = {int(own[row].document_hashes[0]) for row in ids if len(own[row].sentence_starts) > 1}
        assert {pair.label for pair in pairs} == ({NO_PAIR, 0, 1} if len(several) > 1 else {NO_PAIR, 0})
        assert len(several) > 1 or name == "held_out"
        for row, pair in zip(3 * [*ids], pairs, strict=True):
            assert len(pair) <= own.row_length
            if pair.label != 1:
                content = pair.input_ids[pair.input_ids != vocabulary.special.sep]
                assert content.tolist() == own[row].input_ids[:-1].tolist()
