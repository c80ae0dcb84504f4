"""Where words start: the same words in every kind of vocabulary and in ten scripts, and those that rjieba finds."""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from longmlm.artifacts.rows import SPLITS, read_rows_manifest
from longmlm.data import encoding, words
from longmlm.data.encoding import encode, encode_batch, sentences_of
from longmlm.data.engine import prepare_rows
from longmlm.data.fast_encoding import hostile_texts
from longmlm.data.packing import TokenizedDocument, pack
from longmlm.data.row import TokenizedSentence
from longmlm.data.rows import open_rows
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_of
from longmlm.data.words import Segmenter, Spelling, kinds_of, recorded_words, segmenter_of, word_table
from longmlm.errors import DataError, ModelError
from longmlm.settings.prepare import PrepareRecipe

MINI = Path(words.__file__).parents[1] / "bundled" / "roberta-mini"
LANGUAGES = {
    "en": "The|cat|'|s|well|-|known|tail|,|3|.|14|m|…|ok",
    "de": "Größe|und|Öl|:|„|Straße|“",
    "fr": "l|’|été|nai\u0308ve",
    "ru": "Привет|,|мир|2024",
    "el": "Ελληνικά|γράμματα|;",
    "ar": "مرحبا|بالعالم|،|هذا|نصّ",
    "fa": "می\u200cخواهم|بروم",
    "he": "שלום|עולם|!",
    "hi": "हिन्दी|में|लिखा|है|।",
    "ko": "한국어|문장입니다|.",
    "zh": "北|京|2024|年|，|好|BERT|模|型|。",
    "ja": "カタカナ|と|データ|、|漢|字|人々|で|す",
    "th": "ที่|นี่|ดี",
}
WHITE = {"en": "The cat's well-known tail, 3.14m… ok", "de": "Größe und Öl: „Straße“", "ru": "Привет, мир 2024"}
WHITE |= {"fr": "l’été nai\u0308ve", "el": "Ελληνικά γράμματα;", "ar": "مرحبا بالعالم، هذا نصّ", "he": "שלום עולם!"}
WHITE |= {"fa": "می\u200cخواهم بروم", "hi": "हिन्दी में लिखा है।", "ko": "한국어 문장입니다."}
TEXTS = {code: WHITE.get(code, found.replace("|", "")) for code, found in LANGUAGES.items()}
ALPHABET = sorted({character for text in TEXTS.values() for character in text if not character.isspace()})
BYTES_TELL = re.compile("[\u0410-\u044f\u3400-\u9fff\uac00-\ud7a3]")  # characters whose first byte tells their kind
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNSPACED_TEXT = "清晨的雾气还没有散去，老渔夫已经把船推进了湖里。\n\n　　COVID-19 疫苗的研究 3.14 データ"


def word_piece() -> Tokenizer:
    pieces = [*SPECIAL, *ALPHABET, *(f"##{character}" for character in ALPHABET)]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def byte_level() -> Tokenizer:
    """Returns a tokenizer with a token for each character: all bytes, and the merges of each character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    letters = {byte: letter for letter, byte in Spelling.of(tokenizer).letters.items()}
    pieces, merges = [*SPECIAL, *letters.values()], []
    for character in ALPHABET:
        whole, *rest = (letters[byte] for byte in character.encode())
        for letter in rest:
            merges.append((whole, letter))
            whole += letter
            pieces.append(whole)
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(dict.fromkeys(pieces))}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [*((piece, 0.0) for piece in SPECIAL), ("▁", -1.0), *((character, -2.0) for character in ALPHABET)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return tokenizer


def metaspace_bpe() -> Tokenizer:
    """Returns a tokenizer like that of mmBERT: U+2581 from the normalizer, and bytes of characters that it lacks."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    known = [character for character in ALPHABET if not BYTES_TELL.match(character)]
    pieces = {piece: at for at, piece in enumerate([*SPECIAL, *byte_tokens, "▁", *known])}
    tokenizer = Tokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def marked_ends() -> Tokenizer:
    """Returns a tokenizer like HerBERT's: the last piece of a word is marked."""
    pieces = [*SPECIAL, *ALPHABET, *(f"{character}</w>" for character in ALPHABET)]
    tokenizer = Tokenizer(
        models.BPE({piece: at for at, piece in enumerate(pieces)}, [], unk_token="[UNK]", end_of_word_suffix="</w>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    one.__name__: one for one in (word_piece, byte_level, unigram, metaspace_bpe, marked_ends)
}


def words_in(text: str, starts: np.ndarray, offsets: list[tuple[int, int]]) -> list[str]:
    """Returns the text of the words, given at which tokens they start."""
    assert starts[0]
    begins = [offset for (offset, _), is_start in zip(offsets, starts, strict=True) if is_start]
    found = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
    return [word.strip(" ") for word in found]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_vocabulary_tells_the_same_words(kind: str, language: str) -> None:
    vocabulary, text = vocabulary_of(KINDS[kind](), kind), TEXTS[language]
    encoded = vocabulary.tokenizer.encode(text, add_special_tokens=False)
    assert vocabulary.special.unk not in encoded.ids
    starts = word_table(vocabulary).starts(np.array(encoded.ids))
    assert words_in(text, starts, encoded.offsets) == LANGUAGES[language].split("|")


@pytest.fixture(scope="module")
def mini() -> Vocabulary:
    return load_vocabulary(str(MINI))


def test_a_word_never_starts_within_a_character_and_characters_are_told_by_their_first_bytes(mini: Vocabulary) -> None:
    for language, text in TEXTS.items():
        encoded = mini.tokenizer.encode(text, add_special_tokens=False)
        within = mini.is_within_character[encoded.ids]
        starts = word_table(mini).starts(np.array(encoded.ids))
        assert not (starts & within).any()
        assert within.any() or language == "en"
        if language in ("de", "ru", "el", "he", "ko", "zh"):
            assert "|".join(words_in(text, starts, encoded.offsets)) == LANGUAGES[language]


def test_the_real_vocabulary_of_the_bundled_model(mini: Vocabulary) -> None:
    text = " He didn't say: “No, 3.5 of them!”\n\nThe understanding  was\n gone."
    encoded = mini.tokenizer.encode(text, add_special_tokens=False)
    found = words_in(text, word_table(mini).starts(np.array(encoded.ids)), encoded.offsets)
    assert found[:3] == ["He", "didn", "'t"]
    assert "understanding" in found and "gone" in found
    assert "\nThe" in found, "white space belongs to the word after it"


@pytest.fixture(scope="module")
def by_character() -> Vocabulary:
    return vocabulary_of(byte_level(), "byte-level")


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.sampled_from([*ALPHABET, *" \n"]), max_size=40))
def test_kinds_of_characters_decide_in_any_text(by_character: Vocabulary, text: str) -> None:
    encoded = by_character.tokenizer.encode(text, add_special_tokens=False)
    starts = word_table(by_character).starts(np.array([by_character.special.cls, *encoded.ids]))[1:]
    begins = {offset for (offset, _), is_start in zip(encoded.offsets, starts, strict=True) if is_start}
    kinds, before = [words.kind_of(character) for character in text], words.Kind.END
    for at, kind in enumerate(kinds):
        goes_on = kind == words.Kind.JOINED or before == words.Kind.SPACE or kind == before < words.Kind.EACH
        assert (at in begins) == (kind == words.Kind.SPACE or not goes_on)
        before = kind or before


def test_a_token_after_a_special_one_starts_a_word_and_so_does_one_after_an_added_word() -> None:
    tokenizer = word_piece()
    tokenizer.add_tokens([AddedToken("cat", single_word=True, lstrip=True), AddedToken("京年")])
    vocabulary = vocabulary_of(tokenizer, "added")
    table, of = word_table(vocabulary), tokenizer.token_to_id
    ids = [vocabulary.special.cls, of("##T"), of("##h"), vocabulary.special.sep, of("##e"), vocabulary.special.unk]
    assert table.starts(np.array([*ids, of("##e")])).tolist() == [False, True, False, False, True, False, True]
    for pieces in ("T cat ##e", "T cat s", "北 京年 ##e"):
        assert table.starts(np.array([of(piece) for piece in pieces.split()])).all()
    assert table.starts(np.array([of(piece) for piece in ("T", "##h", "##3")])).tolist() == [True, False, True]


def test_a_vocabulary_without_white_space_or_marks_is_refused_in_one_line() -> None:
    tokenizer = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate([*SPECIAL, "a", "b"])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary = vocabulary_of(tokenizer, "levels")
    assert vocabulary.maskable_in("token").words is None
    with pytest.raises(DataError, match='levels: its tokens do not tell .*unit = "token"'):
        vocabulary.maskable_in("word")
    by_character = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate([*SPECIAL, *"ab "])}, "[UNK]"))
    by_character.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    table = vocabulary_of(by_character, "characters").maskable_in("span").words
    assert table.starts(np.array([5, 6, 7, 5, 5])).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xe4", ("EACH", "EACH")),
        (b"\xe4\xb8", ("EACH", "EACH")),
        (b"\xb8\xad", ("JOINED", "JOINED")),
        (b"\xb8\xadab1", ("JOINED", "DIGIT")),
        (b" \xd0", ("SPACE", "LETTER")),
        (b"\xd9", ("LETTER", "LETTER")),
        (b"\xed", ("LETTER", "LETTER")),
        (b"\xe2\x80", ("MARK", "MARK")),
        (b"\xf0\x9f", ("MARK", "MARK")),
        (b"\xff", ("MARK", "MARK")),
        (b"e\xcc\x81", ("LETTER", "LETTER")),
        (b"", ("JOINED", "JOINED")),
    ],
)
def test_kinds_of_incomplete_characters(content: bytes, expected: tuple[str, str]) -> None:
    assert tuple(kind.name for kind in kinds_of(content)) == expected


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(metadata.version("rjieba"))


def as_words(text: str, borders: np.ndarray) -> str:
    begins = np.flatnonzero(borders).tolist()
    return "|".join(text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True))


def test_words_of_a_text(segmenter: Segmenter) -> None:
    borders = segmenter.borders(UNSPACED_TEXT)
    assert not borders[-1]
    assert as_words(UNSPACED_TEXT, borders) == (
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
    text = (chinese_text + "\n" + UNSPACED_TEXT) * 12
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


def test_a_word_that_starts_within_a_token_does_not_count(segmenter: Segmenter) -> None:
    pieces = [*SPECIAL, "北京大", "##学", "##在", "海", "##淀"]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = "北京大学在 海淀"
    (encoded,) = encode_batch(vocabulary_of(tokenizer, "pieces").tokenizer, [text])
    assert as_words(text, segmenter.borders(text)) == "北京大学|在| 海淀"
    (sentence,) = sentences_of(encoded, np.array([0]), text, segmenter)
    assert sentence.is_word_start.tolist() == [True, False, True, True, False]
    text = "海淀在"  # 淀在 as one token over two words
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate([*SPECIAL, "海", "##淀在"])}))
    (encoded,) = encode_batch(tokenizer, [text])
    (sentence,) = sentences_of(encoded, np.array([0]), text, segmenter)
    assert sentence.is_word_start.tolist() == [True, False]


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
