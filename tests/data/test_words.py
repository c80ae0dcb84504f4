"""Where words start: the same words in every kind of vocabulary, in ten scripts."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from longmlm.data import words
from longmlm.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_of
from longmlm.data.words import Spelling, kinds_of, word_table
from longmlm.errors import DataError

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
FIRST_BYTE_IS_ENOUGH = re.compile(
    "[\u0410-\u044f\u3400-\u9fff\uac00-\ud7a3]"
)  # characters whose first byte determines their kind
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


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
    """Returns a tokenizer like that of mmBERT: U+2581 from the normalizer, and bytes for unknown characters."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    known = [character for character in ALPHABET if not FIRST_BYTE_IS_ENOUGH.match(character)]
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
    kinds, before = [words.character_kind(character) for character in text], words.Kind.END
    for at, kind in enumerate(kinds):
        goes_on = before == words.Kind.SPACE or kind == before < words.Kind.EACH
        goes_on |= kind == words.Kind.JOINED and before != words.Kind.END
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
    with pytest.raises(DataError, match='levels: its tokens do not show .*unit = "token"'):
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
