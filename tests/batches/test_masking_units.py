"""Masks of words and spans: exact counts, whole words, spans that do not overlap, the lengths and shares promised."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer, DataCollatorForLanguageModeling

from longmlm.batches import masking as masking_module
from longmlm.batches.masking import MaskedRow, mask_row, span_lengths
from longmlm.data.row import Maskable, Row
from longmlm.data.vocabulary import vocabulary_of_pretrained
from longmlm.settings.masking import Masking, MaskingUnit
from tests.support import signatures

SIZE, MASK = 1_000, 4
SPECIAL = (0, 1, 2, 3, MASK, 700, 999)
IS_MASKABLE = np.isin(np.arange(SIZE), SPECIAL, invert=True)
VOCABULARY = Maskable(IS_MASKABLE, np.flatnonzero(IS_MASKABLE), MASK)
UNITS: tuple[MaskingUnit, ...] = ("word", "span")
WORDS = st.lists(st.integers(1, 12), max_size=60)


def row_of(sizes: list[int], separators: int = 1, seed: int = 0) -> Row:
    """Returns a row of words of these sizes, with separators between words and special tokens at the ends."""
    cuts = {len(sizes) * (number + 1) // (separators + 1) for number in range(separators)}
    ids, is_start, generator = [0], [False], np.random.default_rng(seed)
    for number, size in enumerate(sizes):
        if number in cuts:
            ids, is_start = [*ids, 2], [*is_start, False]
        ids += generator.choice(VOCABULARY.drawable, size).tolist()
        is_start += [True] + [False] * (size - 1)
    return Row(
        np.array([*ids, 2], dtype=np.int64), np.array([1]), np.array([0]), is_word_start=np.array([*is_start, False])
    )


def words_of(row: Row) -> list[list[int]]:
    """Returns the positions of each word of a row."""
    assert row.is_word_start is not None
    words: list[list[int]] = []
    for position in np.flatnonzero(IS_MASKABLE[row.input_ids]).tolist():
        if row.is_word_start[position]:
            words.append([])
        words[-1].append(position)
    return words


def masked(row: Row, unit: MaskingUnit, row_id: int = 0, epoch: int = 0, **more: float) -> MaskedRow:
    return mask_row(row, VOCABULARY, Masking(unit=unit, **more), 7, epoch, row_id)


def spans_of(row: Row, row_id: int, fraction: float) -> list[list[int]]:
    """Returns the positions of each span: all of them are shown unchanged or all as mask tokens, so draws are seen."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    original = masking_module._select_spans

    def recorded(*arguments: object) -> tuple[np.ndarray, np.ndarray]:
        found.append(original(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_module, "_select_spans", recorded)
        result = masked(row, "span", row_id, selected_fraction=fraction)
    opens = found[0][1]  # mask_row marks those after a gap in place
    return [part.tolist() for part in np.split(result.selected, np.flatnonzero(opens)[1:])]


@settings(deadline=None, max_examples=150)
@given(sizes=WORDS, separators=st.integers(0, 3), fraction=st.floats(0.01, 0.99), row_id=st.integers(0, 2**40))
def test_whole_words_are_selected_and_no_other_word_would_fit(
    sizes: list[int], separators: int, fraction: float, row_id: int
) -> None:
    row = row_of(sizes, separators)
    result, words = masked(row, "word", row_id, selected_fraction=fraction), words_of(row)
    selected, count = set(result.selected.tolist()), max(1, round(fraction * sum(sizes)))
    assert (np.diff(result.selected) > 0).all()
    assert np.array_equal(result.labels, row.input_ids[result.selected])
    left = [len(word) for word in words if not selected & {*word}]
    if sizes and min(sizes) > count:
        assert result.selected.tolist() in [word[:count] for word in words if len(word) == min(sizes)]
    elif sizes:
        assert all(selected >= {*word} or not selected & {*word} for word in words)
        assert selected
        assert len(selected) == count or min(left) > count - len(selected)


@settings(deadline=None, max_examples=150)
@given(sizes=WORDS, separators=st.integers(0, 3), fraction=st.floats(0.01, 0.99), row_id=st.integers(0, 2**40))
def test_spans_have_exactly_the_tokens_of_token_masking_and_cross_no_special_token(
    sizes: list[int], separators: int, fraction: float, row_id: int
) -> None:
    row = row_of(sizes, separators)
    result, words = masked(row, "span", row_id, selected_fraction=fraction), words_of(row)
    tokens = masked(row, "token", row_id, selected_fraction=fraction)
    assert len(result.selected) == len(tokens.selected)
    assert (np.diff(result.selected) > 0).all()
    if not sizes:
        return
    first = {word[0]: number for number, word in enumerate(words)}
    number_of = {position: number for number, word in enumerate(words) for position in word}
    spans = spans_of(row, row_id, fraction)
    assert sorted(position for span in spans for position in span) == result.selected.tolist()
    num_cut = 0
    for span in spans:
        assert span == [*range(span[0], span[-1] + 1)], "without a special token inside"
        assert span[0] in first, "begins with a word"
        assert number_of[span[-1]] - number_of[span[0]] < 10
        num_cut += span[-1] != words[number_of[span[-1]]][-1]
    assert num_cut <= 1, "one span ends within a word at most"


@pytest.mark.parametrize("unit", UNITS)
def test_a_mask_depends_on_seed_epoch_and_row_only_and_repeats_with_its_patterns(unit: MaskingUnit) -> None:
    row, settings_of_unit = row_of([1, 3, 2, 1, 4] * 12), Masking(unit=unit)
    keys = [(9, 5, 3), (10, 5, 3), (9, 6, 3), (9, 5, 4), (5, 9, 3), (3, 5, 9)]
    chosen = [mask_row(row, VOCABULARY, settings_of_unit, *key).selected for key in keys]
    assert not any(np.array_equal(one, other) for one, other in combinations(chosen, 2))
    np.random.seed(1)
    assert np.array_equal(mask_row(row, VOCABULARY, settings_of_unit, *keys[0]).selected, chosen[0])
    patterns = replace(settings_of_unit, mask_patterns=3)
    results = [mask_row(row, VOCABULARY, patterns, 9, epoch, 3) for epoch in range(9)]
    assert len({one.row.input_ids.tobytes() for one in results}) == 3
    assert all(np.array_equal(results[at].row.input_ids, results[at % 3].row.input_ids) for at in range(9))


def test_the_lengths_of_spans_are_geometric_up_to_ten_with_a_mean_of_3_8() -> None:
    expected = 0.2 * 0.8 ** np.arange(10)
    expected /= expected.sum()
    drawn = span_lengths(np.random.default_rng(0).random(100_000))
    counts = np.bincount(drawn, minlength=11)[1:]
    assert counts.sum() == 100_000 and (drawn >= 1).all()
    assert chi_square(counts, expected) < 27.9, "of 9 degrees of freedom, 0.1 %"
    assert drawn.mean() == pytest.approx(3.797, abs=0.03)
    row = row_of([1, 2, 1, 3, 1] * 200, separators=0)  # 1,000 words of 1,600 tokens
    words, found = words_of(row), Counter()
    number_of = {position: number for number, word in enumerate(words) for position in word}
    for row_id in range(150):
        found.update(number_of[span[-1]] - number_of[span[0]] + 1 for span in spans_of(row, row_id, 0.15))
    counts = np.array([found[length] for length in range(1, 11)])
    assert counts.sum() > 5_000
    shares = counts / counts.sum()
    assert np.abs(shares - expected).max() < 0.02, "one span in forty is cut"
    assert shares @ np.arange(1, 11) == pytest.approx(3.75, abs=0.1)


def test_shapes_are_checked_where_this_is_asked_for() -> None:
    """Nowhere else, so that most tests are fast."""
    with pytest.raises(TypeError) if signatures.is_asked() else nullcontext():
        span_lengths(np.zeros((2, 2)))


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    expected = counts.sum() * shares
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("unit", UNITS)
def test_every_word_is_selected_equally_often_also_at_the_ends_of_a_row_and_beside_separators(
    unit: MaskingUnit,
) -> None:
    row, times = row_of([1] * 300, separators=2), np.zeros(310)
    for row_id in range(600):
        times[masked(row, unit, row_id).selected] += 1
    positions = [word[0] for word in words_of(row)]
    expected, deviation = 600 * 0.15, np.sqrt(600 * 0.15 * 0.85)
    assert times.sum() == 600 * 45
    assert np.abs(times[positions] - expected).max() < 5 * deviation, "at one of 300 positions by chance: 0.02 %"
    ends = [*positions[:5], *positions[-5:], *(at for end in (100, 200) for at in positions[end - 2 : end + 2])]
    assert np.abs(times[ends].mean() - expected) < 4 * deviation / np.sqrt(4), "spans tie the words of each of 4 places"


def test_long_words_are_selected_nearly_as_often_as_short_ones() -> None:
    """The last tokens that are left to select go to words that still fit."""
    row, times = row_of([1, 1, 2, 6] * 150), np.zeros(1_510)
    for row_id in range(400):
        times[masked(row, "word", row_id).selected] += 1
    shares = times[[word[0] for word in words_of(row)]].reshape(150, 4).mean(0) / 400
    assert np.abs(shares - 0.15).max() < 0.008


@pytest.mark.parametrize("unit", UNITS)
def test_shares_hold_per_token_of_a_word_and_per_span(unit: MaskingUnit) -> None:
    row = row_of([3] * 120)
    counts: Counter[frozenset[str]] = Counter()
    kinds: Counter[str] = Counter()
    for row_id in range(400):
        result = masked(row, unit, row_id)
        shown, labels = result.row.input_ids[result.selected], result.labels
        kind = np.where(shown == MASK, "masked", np.where(shown == labels, "kept", "random"))
        kinds.update(kind.tolist())
        words = np.split(kind, np.arange(3, len(kind), 3)) if unit == "word" else []
        counts.update(frozenset(word.tolist()) for word in words)
        if unit == "span":
            where = dict(zip(result.selected.tolist(), kind.tolist(), strict=True))
            counts.update(frozenset(where[position] for position in span) for span in spans_of(row, row_id, 0.15))
    total = sum(kinds.values())
    groups = sum(counts.values())
    assert total == 400 * 54
    spread = np.sqrt(0.16 / (total if unit == "word" else groups))
    for name, share in {"masked": 0.8, "random": 0.1, "kept": 0.1}.items():
        assert abs(kinds[name] / total - share) < 5 * spread
    mixed = sum(number for group, number in counts.items() if len(group) > 1) / groups
    if unit == "word":
        assert mixed == pytest.approx(1 - 0.8**3 - 2 * 0.1**3, abs=0.03)
    else:
        assert mixed < 0.001, "a random token may be the original one"


def test_a_row_whose_words_all_exceed_the_count_gets_the_start_of_its_shortest() -> None:
    row = row_of([9, 7, 8], separators=0)
    assert masked(row, "word", selected_fraction=0.1).selected.tolist() == words_of(row)[1][:2]
    assert len(masked(row, "span", selected_fraction=0.1).selected) == 2
    for unit in UNITS:
        assert len(masked(row_of([]), unit).selected) == 0
        assert len(masked(row_of([1], separators=0), unit).selected) == 1


def test_a_word_ends_at_a_special_token_even_if_the_column_says_that_it_goes_on() -> None:
    row = row_of([4, 4], separators=0)
    ids = np.insert(row.input_ids, 3, 2)  # a separator after two tokens of the first word
    cut = replace(row, input_ids=ids, is_word_start=np.isin(np.arange(len(ids)), [6]))
    for row_id in range(20):
        selected = masked(cut, "word", row_id, selected_fraction=0.25).selected.tolist()
        assert selected in ([1, 2], [4, 5])


@pytest.mark.parametrize("unit", UNITS)
def test_rows_without_the_column_use_the_tokens(unit: MaskingUnit, tokenizer_of: Callable[[], BertTokenizer]) -> None:
    vocabulary = vocabulary_of_pretrained(tokenizer_of(), "tiny")
    maskable = vocabulary.maskable_in(unit)
    assert vocabulary.maskable_in("token").words is None
    ids = [vocabulary.special.cls, *vocabulary.tokenizer.encode("abba cab " * 9).ids[1:-1], vocabulary.special.sep]
    row = Row(np.array(ids), np.array([1]), np.array([0]))
    with_column = replace(row, is_word_start=maskable.words.starts(row.input_ids))
    assert with_column.is_word_start.sum() == 18
    one, other = (mask_row(each, maskable, Masking(unit=unit), 3, 0, 1) for each in (row, with_column))
    assert np.array_equal(one.row.input_ids, other.row.input_ids)


@pytest.fixture
def tokenizer_of() -> Callable[[], BertTokenizer]:
    han = "北京大学在海淀区的清华园湖水像一面镜子映着远处的山和天上的云"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", *(f"##{letter}" for letter in "abc")]
    return lambda: BertTokenizer(vocab={piece: at for at, piece in enumerate([*pieces, *dict.fromkeys(han)])})


def test_transformers_masks_a_chinese_text_as_one_word_and_shows_nothing_but_mask_tokens(
    tokenizer_of: Callable[[], BertTokenizer],
) -> None:
    """What `whole_word_mask` of its collator does, and ours on the same text."""
    tokenizer, text = tokenizer_of(), "北京大学在海淀区的清华园湖水像一面镜子映着远处的山和天上的云"
    ids = tokenizer(text)["input_ids"]
    collator = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=0.15, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0, seed=0
    )
    vocabulary = vocabulary_of_pretrained(tokenizer, "tiny")
    maskable, row = vocabulary.maskable_in("word"), Row(np.array(ids), np.array([1]), np.array([0]))
    theirs, ours = Counter(), Counter()
    for number in range(40):
        batch = collator([tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)])
        theirs[int((batch["labels"] != -100).sum())] += 1
        ours[len(mask_row(row, maskable, Masking(unit="word"), 0, number, 0).selected)] += 1
    assert set(theirs) <= {0, len(text)}, "all of the text, or none of it"
    assert set(ours) == {round(0.15 * len(text))}
