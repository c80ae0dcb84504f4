"""FULL-SENTENCES rows: the worked examples, nothing lost, nothing cut without need, no row closed too early."""

from itertools import accumulate, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from tokenizers.decoders import ByteLevel

from longmlm.data.packing import Row, TokenizedDocument, pack
from longmlm.data.row import SpecialTokens, TokenizedSentence
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.settings.prepare import PackingMode

CLS, SEP, FIRST = 0, 2, 10
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, mask=4, pad=1, unk=3, all=(0, 1, 2, 3, 4))
CORPORA = st.lists(st.lists(st.integers(0, 24), max_size=9), max_size=6)
ROW_LENGTHS = st.integers(3, 16)
MODES = st.sampled_from(["full-sentences", "doc-sentences"])


def corpus_of(sizes: list[list[int]], num_sources: int = 1) -> list[TokenizedDocument]:
    """Returns documents of the sources in turn, with sentences of these sizes, no two of whose tokens are the same."""
    documents, first = [], FIRST
    for number, of_document in enumerate(sizes):
        ends = [*accumulate(of_document, initial=first)]
        sentences = [np.arange(begin, end, dtype=np.uint32) for begin, end in pairwise(ends) if end > begin]
        documents.append(TokenizedDocument([*map(TokenizedSentence, sentences)], source=number % num_sources))
        first = ends[-1]
    return documents


def packed(
    sizes: list[list[int]], row_length: int, mode: PackingMode = "full-sentences", num_sources: int = 1
) -> list[Row]:
    return list(pack(corpus_of(sizes, num_sources), row_length, SPECIAL, mode))


def parts_of(row: Row) -> list[list[int]]:
    """Returns what a row holds of each document, after a look at its frame and its separators."""
    ids, starts = row.input_ids.tolist(), row.document_starts.tolist()
    assert (ids[0], ids[-1]) == (CLS, SEP)
    assert starts[0] == 1
    assert [ids[start - 1] for start in starts[1:]] == [SEP] * (len(starts) - 1)
    ends = [*(start - 1 for start in starts[1:]), len(ids) - 1]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def contents(rows: list[Row]) -> list[list[int]]:
    return [[token for part in parts_of(row) for token in part] for row in rows]


def reference_rows(sizes: list[list[int]], capacity: int) -> list[list[int]]:
    """Returns the content of full-sentences rows: of units no longer than a row, each row takes all that fit."""
    units = [
        (number, sentence[begin : begin + capacity])
        for number, document in enumerate(corpus_of(sizes))
        for sentence in [sentence.input_ids.tolist() for sentence in document.sentences]
        for begin in range(0, len(sentence), capacity)
    ]
    rows = []
    while units:
        fitting = 0
        for count in range(1, len(units) + 1):
            separators = sum(before != after for (before, _), (after, _) in pairwise(units[:count]))
            if sum(len(tokens) for _, tokens in units[:count]) + separators > capacity:
                break
            fitting = count
        rows.append([token for _, tokens in units[:fitting] for token in tokens])
        units = units[fitting:]
    return rows


def test_the_worked_example_of_the_design_gives_its_five_rows() -> None:
    rows = packed([[5, 4, 1, 7, 20, 3, 1, 2]], row_length=12)
    assert [len(content) for content in contents(rows)] == [10, 7, 10, 10, 6]
    borders = [content[0] - FIRST for content in contents(rows)]
    assert borders == [0, 10, 17, 27, 37]
    rows = packed([[10], [10], [25], [3]], row_length=12)
    assert [row.input_ids.tolist().count(SEP) for row in rows] == [1, 1, 1, 1, 2], "no separator at the edge of a row"
    assert [len(part) for part in parts_of(rows[-1])] == [5, 3]


def test_the_separator_between_documents_takes_a_place_of_the_row() -> None:
    assert [len(content) for content in contents(packed([[5, 5], [5, 5]], row_length=12))] == [10, 10]
    assert [len(content) for content in contents(packed([[5], [5]], row_length=12))] == [5, 5]
    (row,) = packed([[5], [4]], row_length=12)
    assert row.input_ids.tolist() == [CLS, 10, 11, 12, 13, 14, SEP, 15, 16, 17, 18, SEP]
    assert row.document_starts.tolist() == [1, 7]
    assert row.document_sources.tolist() == [0, 0]


def test_a_long_sentence_is_cut_between_characters() -> None:
    [sentence] = corpus_of([[25]])[0].sentences
    within = np.zeros(FIRST + 25, dtype=bool)
    within[[FIRST + 10, FIRST + 9, FIRST + 18, *range(FIRST + 20, FIRST + 25)]] = True
    document = TokenizedDocument([sentence], source=0)
    rows = [*pack([document], 12, SPECIAL, "full-sentences", within)]
    assert [len(content) for content in contents(rows)] == [8, 9, 8], "at token 8, not 10; at 17, not 18"
    within[:] = True
    rows = [*pack([document], 12, SPECIAL, "full-sentences", within)]
    assert [len(content) for content in contents(rows)] == [10, 10, 5], "bytes that are no text fill their rows"


def test_no_row_of_byte_level_tokens_holds_half_a_character(vocabulary: Vocabulary) -> None:
    text = "湖水很冷，鱼会游得很深😀" * 40
    ids = np.array(vocabulary.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)
    assert len(ids) > len(text)
    for row_length in range(7, 40):
        document = TokenizedDocument([TokenizedSentence(ids)], source=0)
        rows = pack([document], row_length, vocabulary.special, "full-sentences", vocabulary.is_within_character)
        texts = [
            ByteLevel().decode([*map(vocabulary.tokenizer.id_to_token, row.input_ids[1:-1].tolist())]) for row in rows
        ]
        assert "".join(texts) == text


def test_tokens_that_begin_within_a_character_are_known(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    bytes_of_letters = Tokenizer(models.BPE(byte_fallback=True, vocab={"<0xE4>": 0, "<0xBD>": 1, "x": 2}, merges=[]))
    special = {"cls_token": "x", "sep_token": "x", "mask_token": "x", "pad_token": "x"}
    fallback = vocabulary_of(bytes_of_letters, "", special).is_within_character
    assert fallback is not None and fallback.tolist() == [False, True, False]
    assert vocabulary_of(tokenizers_by_kind["word_piece"], "").is_within_character is None
    byte_level = vocabulary_of(tokenizers_by_kind["byte_level_trimmed"], "")
    assert byte_level.is_within_character is not None and byte_level.is_within_character.sum() >= 64
    assert not byte_level.is_within_character[[*byte_level.special.all]].any()


@settings(deadline=None, max_examples=80)
@given(CORPORA, ROW_LENGTHS, MODES)
def test_rows_hold_exactly_the_tokens_of_the_corpus_in_order_and_tell_each_its_document(
    sizes: list[list[int]], row_length: int, mode: PackingMode
) -> None:
    rows = packed(sizes, row_length, mode, num_sources=2)
    num_tokens = sum(map(sum, sizes))
    assert [token for content in contents(rows) for token in content] == list(range(FIRST, FIRST + num_tokens))
    assert all(contents(rows))
    assert bool(rows) == bool(num_tokens)
    assert all(3 <= len(row.input_ids) <= row_length for row in rows)
    sources = [
        (token, source)
        for row in rows
        for part, source in zip(parts_of(row), row.document_sources.tolist(), strict=True)
        for token in part
    ]
    documents = corpus_of(sizes, num_sources=2)
    assert sources == [
        (token, one.source) for one in documents for part in one.sentences for token in part.input_ids.tolist()
    ]


@settings(deadline=None, max_examples=80)
@given(CORPORA, ROW_LENGTHS)
def test_sources_share_no_row_and_are_packed_as_if_each_were_alone(sizes: list[list[int]], row_length: int) -> None:
    alone = [row for document in corpus_of(sizes) for row in pack([document], row_length, SPECIAL, "full-sentences")]
    assert contents(packed(sizes, row_length, num_sources=len(sizes) or 1)) == contents(alone)


@settings(deadline=None, max_examples=80)
@given(CORPORA, ROW_LENGTHS)
def test_full_sentences_agrees_with_taking_for_each_row_all_that_fits(sizes: list[list[int]], row_length: int) -> None:
    assert contents(packed(sizes, row_length)) == reference_rows(sizes, row_length - 2)


@settings(deadline=None, max_examples=80)
@given(CORPORA, ROW_LENGTHS)
def test_doc_sentences_packs_each_document_as_if_it_were_alone(sizes: list[list[int]], row_length: int) -> None:
    rows = packed(sizes, row_length, "doc-sentences")
    assert all(len(row.document_starts) == 1 and SEP not in parts_of(row)[0] for row in rows)
    alone = [row for document in corpus_of(sizes) for row in pack([document], row_length, SPECIAL, "full-sentences")]
    assert contents(rows) == contents(alone)
