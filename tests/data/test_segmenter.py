"""Words that rjieba finds in Chinese and Japanese: on their way from the text over tokens into rows."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from longmlm.artifacts.rows import SPLITS, read_rows_manifest
from longmlm.data import encoding, words
from longmlm.data.encoding import encode, encode_batch, sentences_of
from longmlm.data.engine import prepare_rows
from longmlm.data.fast_encoding import hostile_texts
from longmlm.data.packing import TokenizedDocument, pack
from longmlm.data.row import TokenizedSentence
from longmlm.data.rows import open_rows
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.data.words import Segmenter, Spelling, recorded_words, segmenter_of, word_table
from longmlm.errors import DataError, ModelError
from longmlm.settings.prepare import PrepareRecipe

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT = "清晨的雾气还没有散去，老渔夫已经把船推进了湖里。\n\n　　COVID-19 疫苗的研究 3.14 データ"


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(metadata.version("rjieba"))


def as_words(text: str, borders: np.ndarray) -> str:
    begins = np.flatnonzero(borders).tolist()
    return "|".join(text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True))


def test_words_of_a_text(segmenter: Segmenter) -> None:
    borders = segmenter.borders(TEXT)
    assert not borders[-1]
    assert as_words(TEXT, borders) == (
        "清晨|的|雾气|还|没有|散|去|，|老|渔夫|已经|把|船|推进|了|湖里|。|\n|\n|　|　COVID-19| 疫苗|的|研究| 3.14"
        "| データ"
    )


def test_no_character_is_lost(segmenter: Segmenter) -> None:
    for text in [*(text[:3_000] for text in hostile_texts()), "", " ", "中", "ー"]:
        assert len(segmenter.borders(text)) == len(text) + 1
        assert segmenter.borders(text)[:1].all() or not text


@pytest.mark.parametrize("kind", ["byte_level_trimmed", "byte_level_whole", "word_piece", "unigram"])
def test_words_of_tokens_are_those_of_the_text_whether_encoded_whole_or_in_pieces(
    kind: str,
    tokenizers_by_kind: dict[str, Tokenizer],
    segmenter: Segmenter,
    monkeypatch: pytest.MonkeyPatch,
    chinese_text: str,
) -> None:
    tokenizer = vocabulary_of(tokenizers_by_kind[kind], kind).tokenizer
    text = (chinese_text + "\n" + TEXT) * 12
    starts = sentence_starts(text, "zh")
    (whole,) = encode_batch(tokenizer, [text])
    known = sentences_of(whole, starts, text, segmenter)
    assert [one.input_ids.tolist() for one in known] == [one.input_ids.tolist() for one in sentences_of(whole, starts)]
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 600)
    monkeypatch.setattr(encoding, "CONTEXT_CHARACTERS", 300)
    pieces = [*encode(tokenizer, text, starts, segmenter)]
    assert len(pieces) == len(known) > 50
    for one, other in zip(pieces, known, strict=True):
        assert np.array_equal(one.input_ids, other.input_ids) and np.array_equal(one.is_word_start, other.is_word_start)
    bits = np.concatenate([one.is_word_start for one in known])
    borders = {0, *np.flatnonzero(segmenter.borders(text)).tolist()}
    for (begin, end), before, is_start in zip(whole.offsets, [(0, 0), *whole.offsets], bits.tolist(), strict=False):
        gap = range(min(before[1], begin), begin + 1)
        assert is_start == bool(borders & {*gap} and (before[1] <= begin)), (text[before[0] : end], is_start)


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("北京大学在 海淀", "北京大 ##学 ##在 海 ##淀", "10110"),
        ("海淀在", "海 ##淀在", "10"),
        ("北京大学在海淀", "北京大学在海 ##淀", "10"),
        ("北京大学 在海淀", "北京大学 在海 ##淀", "110"),
    ],
)
def test_a_word_that_starts_within_a_token_does_not_count(
    segmenter: Segmenter, text: str, pieces: str, expected: str
) -> None:
    ids = {piece: number for number, piece in enumerate([*SPECIAL, *pieces.split()])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (encoded,) = encode_batch(tokenizer, [text])
    assert encoded.tokens == pieces.split()
    assert as_words(text, segmenter.borders(text)).replace(" ", "") in ("北京大学|在|海淀", "海淀|在")
    (sentence,) = sentences_of(encoded, np.array([0]), text, segmenter)
    assert sentence.is_word_start.tolist() == [digit == "1" for digit in expected]


def test_terms_are_kept_whole(segmenter: Segmenter, tmp_path: Path) -> None:
    text = "甲流感病毒样颗粒疫苗的研究"
    assert "流感病毒样颗粒" not in as_words(text, segmenter.borders(text)).split("|")
    with_terms = replace(segmenter, path="t", lines=("流感病毒样颗粒", "", "  颗粒疫苗 3 n  "))
    assert "流感病毒样颗粒" in as_words(text, with_terms.borders(text)).split("|")
    assert "流感病毒样颗粒" not in as_words(text, segmenter.borders(text)).split("|"), "another segmenter is as it was"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("T 细胞", "line 2 of .* is 'T 细胞': write a term of at least two"),
        ("α-干扰素", "rjieba splits α-干扰素 in line 2 of .* into α and - and 干扰素"),
        ("新冠疫苗 多次", "line 2 of "),
        ("的研究 1 n", "rjieba splits 的研究 in line 2 of .* or its frequency"),
    ],
)
def test_terms_that_cannot_be_words_are_refused(recipe: PrepareRecipe, tmp_path: Path, line: str, message: str) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text(f"流感病毒样颗粒\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as refused:
        segmenter_of(replace(recipe, words="rjieba", terms=str(terms)))
    assert "\n" not in str(refused.value)


def test_files_of_terms_that_are_of_no_use(recipe: PrepareRecipe, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(DataError, match="has no term"):
        segmenter_of(replace(recipe, words="rjieba", terms=str(empty)))
    with pytest.raises(ModelError, match="terms: gone cannot be read"):
        segmenter_of(replace(recipe, words="rjieba", terms="gone"))


def test_without_rjieba_the_line_says_what_to_install(recipe: PrepareRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "find_spec", lambda _: None)
    assert segmenter_of(recipe) is None
    with pytest.raises(DataError, match=r"pip install 'longmlm\[words\]'"):
        segmenter_of(replace(recipe, words="rjieba"))
    assert recorded_words(replace(recipe, words="rjieba"), "rjieba 0.1") == ("rjieba 0.1", None)


def test_rows_of_another_version_of_rjieba_are_not_mixed(segmenter: Segmenter) -> None:
    with pytest.raises(DataError, match=r"is installed here, not 0\.0"):
        replace(segmenter, version="0.0").borders("中国")


def test_rows_record_words_of_chinese_by_rjieba_and_of_english_by_tokens(
    recipe: PrepareRecipe, vocabulary: Vocabulary, segmenter: Segmenter, tmp_path: Path, chinese_text: str
) -> None:
    plain = prepare_rows(recipe, vocabulary, tmp_path / "plain")
    terms = tmp_path / "terms.txt"
    terms.write_text("映着远处\n", encoding="utf-8")
    with_words = replace(recipe, words="rjieba", terms=str(terms))
    manifest = prepare_rows(with_words, vocabulary, tmp_path / "words", encoder="auto")
    assert manifest.plan.segmenter == f"rjieba {segmenter.version}" and manifest.plan.terms_sha256
    assert manifest.plan.without_paths().terms == "terms.txt"
    assert not manifest.plan.is_same(plain.plan)
    table, spelling = word_table(vocabulary), Spelling.of(vocabulary.tokenizer)
    found: dict[int, list[str]] = {0: [], 1: []}
    for split in SPLITS:
        rows, others = (open_rows(tmp_path / name, split) for name in ("words", "plain"))
        assert len(rows) == len(others) > 3
        for row, other in zip(rows, others, strict=True):
            assert np.array_equal(row.input_ids, other.input_ids)
            assert np.array_equal(row.document_starts, other.document_starts)
            assert other.is_word_start is None
            assert row.is_word_start.dtype == bool and len(row.is_word_start) == len(row)
            assert not row.is_word_start[np.isin(row.input_ids, vocabulary.special.all)].any()
            source = int(row.document_sources[0])
            if source == 0:
                assert np.array_equal(row.is_word_start, table.starts(row.input_ids))
            for part in np.split(row.input_ids, np.flatnonzero(row.is_word_start)):
                content = map(spelling.content, map(vocabulary.tokenizer.id_to_token, part.tolist()))
                found[source].append(b"".join(content).decode(errors="replace").strip())
    assert found[0] and {"映着远处", "清晨", "孙子", "爷爷"} <= set(found[1])
    assert "映着" not in found[1]
    assert read_rows_manifest(tmp_path / "words").plan == manifest.plan


def test_other_terms_make_other_rows(recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("映着远处\n", encoding="utf-8")
    with_words = replace(recipe, words="rjieba", terms=str(terms), slice_bytes=10**9)
    first = prepare_rows(with_words, vocabulary, tmp_path / "rows")
    assert prepare_rows(with_words, vocabulary, tmp_path / "rows") == first
    moved = terms.rename(tmp_path / "moved.txt")
    assert prepare_rows(replace(with_words, terms=str(moved)), vocabulary, tmp_path / "rows") == first
    moved.write_text("映着远处\n石头上\n", encoding="utf-8")
    with pytest.raises(DataError, match="was made from other text or settings"):
        prepare_rows(replace(with_words, terms=str(moved)), vocabulary, tmp_path / "rows")


def test_rows_that_are_cut_and_windows_keep_the_bits_of_their_tokens(vocabulary: Vocabulary) -> None:
    ids = np.arange(10, 40, dtype=np.uint32)
    sentences = [TokenizedSentence(ids[:4], ids[:4] % 2 == 0), TokenizedSentence(ids, ids % 3 == 0)]
    rows = [*pack([TokenizedDocument(sentences, 0)] * 2, 15, vocabulary.special, "full-sentences")]
    assert len(rows) > 5 and any(len(row.document_starts) > 1 for row in rows)
    packed = np.concatenate([row.input_ids for row in rows])
    bits = np.concatenate([row.is_word_start for row in rows])
    is_content = ~np.isin(packed, vocabulary.special.all)
    assert not bits[~is_content].any()
    assert np.array_equal(bits[is_content], np.concatenate([one.is_word_start for one in sentences] * 2))
    for row in rows:
        window = row.window(2, 5, vocabulary.special)
        assert window.is_word_start.tolist() == [False, *row.is_word_start[2:5].tolist(), False]
