"""The groups of selected tokens are those that a plain search of the row finds, one token at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmlm.artifacts.accuracy import CHUNK, GROUPINGS, NOWHERE, ROW, Grouping, group_names, group_starts
from longmlm.batches.masking import MaskedRow
from longmlm.data.row import Row, SpecialTokens
from longmlm.evaluation.frozen import chunks, groups_of

CLS, SEP, MASK = 0, 1, 2
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, mask=MASK, pad=3, unk=None, all=(0, 1, 2, 3))
LETTERS = {letter: 10 + number for number, letter in enumerate("ABCDEF")}


def masked_row(tokens: list[int], selected: list[int], shown: list[int], starts: tuple[int, ...] = (1,)) -> MaskedRow:
    """Returns a row with special tokens around these, whose selected positions show other tokens."""
    ids = np.array([CLS, *tokens, SEP])
    labels = ids[selected]
    ids[selected] = shown
    return MaskedRow(Row(ids, np.array(starts), np.zeros(len(starts), int)), np.array(selected, int), labels)


def names_of(masked: MaskedRow, base: int, length: int, *, isolated: bool = False) -> dict[Grouping, list[str]]:
    numbers = groups_of(masked, base, length, isolated)
    names = [name for grouping in GROUPINGS for name in group_names(grouping, base, length)]
    return {key: [names[at] for at in row] for key, row in zip(GROUPINGS, numbers, strict=True)}


def test_the_example_of_the_module() -> None:
    tokens = [LETTERS[letter] for letter in "ABACDBECBFDE"]
    masked = masked_row(tokens, [3, 5, 7, 8, 9, 12], [MASK] * 6)
    found = names_of(masked, 6, 14)
    assert found["occurrence"] == [CHUNK, ROW, NOWHERE, ROW, ROW, NOWHERE]
    assert found["distance"] == ["2–3", "4–7", NOWHERE, "4–7", "2–3", NOWHERE]
    assert found["offset"] == ["0–2", "3–5", "6–8", "6–8", "6–8", "9–11"]


def test_a_token_that_is_shown_counts_for_others_but_not_for_itself_and_a_random_one_for_none() -> None:
    shown = masked_row([10, 11, 10, 12], [1, 3], [10, MASK])
    assert names_of(shown, 6, 6)["occurrence"] == [NOWHERE, CHUNK]
    random = masked_row([10, 11, 12, 13], [1, 2], [MASK, 10])
    assert names_of(random, 6, 6)["occurrence"] == [NOWHERE, NOWHERE]


def test_of_isolated_documents_only_their_own_occurrences_count() -> None:
    """Two documents, A B B and A C A with a separator before it; the base model reads chunks of 8 tokens."""
    masked = masked_row([10, 11, 11, SEP, 10, 12, 10], [1, 2, 5], [MASK] * 3, (1, 5))
    assert names_of(masked, 10, 12)["occurrence"] == [CHUNK] * 3
    alone = names_of(masked, 10, 12, isolated=True)
    assert (alone["occurrence"], alone["distance"]) == ([NOWHERE, CHUNK, CHUNK], [NOWHERE, "1", "2–3"])


@pytest.mark.parametrize(
    ("base", "length", "starts"),
    [
        (16, 40, [1, 2, 4, 8, 14, 32, 40]),
        (128, 384, [1, 2, 4, 8, 16, 32, 64, 126, 256, 384]),
        (512, 1536, [1, 2, 4, 8, 16, 32, 64, 128, 256, 510, 1024, 1536]),
        (100, 120, [1, 2, 4, 8, 16, 32, 64, 98, 120]),
        (40, 40, [1, 2, 4, 8, 16, 38, 40]),
    ],
)
def test_distances_are_grouped_by_powers_of_two_with_a_border_where_chunks_end(base, length, starts) -> None:
    assert group_starts("distance", base, length) == starts
    assert base - 2 in starts
    names = group_names("distance", base, length)
    assert (names[0], names[1], names[-1], len(names)) == ("1", "2–3", NOWHERE, len(starts))


@st.composite
def masked_rows(draw: st.DrawFn) -> MaskedRow:
    """Draws rows of few different tokens, so that most occur again, with one to three documents."""
    tokens = draw(st.lists(st.sampled_from([*LETTERS.values(), SEP]), min_size=1, max_size=60))
    maskable = [at for at, token in enumerate(tokens, 1) if token != SEP]
    selected = sorted(draw(st.sets(st.sampled_from(maskable), max_size=len(maskable)))) if maskable else []
    shown = [draw(st.sampled_from([MASK, tokens[at - 1], *LETTERS.values()])) for at in selected]
    starts = draw(st.sets(st.integers(2, len(tokens)), max_size=2)) if len(tokens) > 1 else set()
    return masked_row(tokens, selected, shown, (1, *sorted(starts)))


@given(masked_rows(), st.integers(4, 70), st.booleans())
def test_groups_are_those_of_a_search_through_the_row(masked: MaskedRow, base: int, isolated: bool) -> None:
    row, length, found = masked.row, len(masked.row), names_of(masked, base, len(masked.row), isolated=isolated)
    document = np.searchsorted(row.document_starts[1:], np.arange(length), side="right")
    chunk_of = {}
    for number, view in enumerate(chunks(masked, base, SPECIAL)):
        first = 1 + number * (base - 2)
        chunk_of |= dict.fromkeys(range(first, first + len(view.masked.row) - 2), number)
        assert all(chunk_of[at] == number for at in view.positions.tolist())
    label_of = dict(zip(masked.selected.tolist(), masked.labels.tolist(), strict=True))
    for index, (at, label) in enumerate(label_of.items()):
        seen = [
            other
            for other in range(length)
            if other != at
            and label_of.get(other, row.input_ids[other]) == label == row.input_ids[other]
            and not (isolated and document[other] != document[at])
        ]
        distance = min((abs(other - at) for other in seen), default=None)
        in_chunk = any(chunk_of.get(other) == chunk_of[at] for other in seen)
        assert found["occurrence"][index] == (CHUNK if in_chunk else ROW if seen else NOWHERE)
        low, _, high = found["distance"][index].partition("–")
        if distance is None:
            assert low == NOWHERE
        else:
            assert int(low) <= distance <= int(high or low)
            assert in_chunk or distance < base - 2 or int(low) >= base - 2
