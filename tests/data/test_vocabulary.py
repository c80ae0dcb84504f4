"""Tokens: those of the whole document, cut at its sentences, and no special token for a text that spells one."""

import copy
import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from longmlm.data import encoding as encoding_module
from longmlm.data.encoding import encode, encode_batch, sentences_of
from longmlm.data.row import TokenizedSentence
from longmlm.data.sentences import sentence_starts
from longmlm.data.vocabulary import load_vocabulary, vocabulary_of, vocabulary_of_pretrained
from longmlm.errors import DataError
from tests.support.families import tiny_tokenizer

Spans = list[tuple[int, int]]
Parts = dict[str, Any]  # of a definition
PIECE, CONTEXT = 600, 300
SPELT = "He wrote <s> and </s>, <pad><unk> or x<mask> y, [CLS] [SEP][PAD] [UNK] and [MASK]."
STRETCHES = st.lists(
    st.sampled_from(
        [
            "The old boat lay on the shore, and nobody had painted it for years. ",
            "湖水像一面镜子，映着远处的山和天上的云。\n",
            " " * 40,
            "\n\n\t \u3000",
            "wordwithoutanyend" * 9,
            "=" * 45,
            "=" * 701,
            " " * 701,
            "é\u0301ñ😀ﬁ½ ",
            "12 345.67, ",
        ]
    ),
    min_size=20,
    max_size=60,
).map("".join)


@pytest.fixture
def encoded_spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Makes documents long from `PIECE` characters on; returns the spans that were encoded."""
    monkeypatch.setattr(encoding_module, "PIECE_CHARACTERS", PIECE)
    monkeypatch.setattr(encoding_module, "CONTEXT_CHARACTERS", CONTEXT)
    spans: Spans = []
    encode_span = encoding_module._encode_span

    def counted(tokenizer: Tokenizer, text: str, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        spans.append((begin, end))
        return encode_span(tokenizer, text, begin, end)

    monkeypatch.setattr(encoding_module, "_encode_span", counted)
    return spans


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text, and the index of the first token of each sentence that has any."""

    input_ids: np.ndarray
    sentence_starts: np.ndarray


def joined(sentences: Iterable[TokenizedSentence]) -> Encoded:
    found = [np.zeros(0, dtype=np.uint32), *(sentence.input_ids for sentence in sentences)]
    starts = np.cumsum([0, *map(len, found[1:])])[: max(1, len(found) - 1)]
    return Encoded(np.concatenate(found), starts)


def encoded(tokenizer: Tokenizer, text: str, language: str = "en") -> Encoded:
    known = vocabulary_of(tokenizer, "tiny").tokenizer
    return joined(encode(known, text, sentence_starts(text, language)))


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_short_documents_encoded_together_have_the_tokens_of_each_alone(
    tokenizer: Tokenizer, english_texts: list[str], chinese_text: str
) -> None:
    known = vocabulary_of(tokenizer, "tiny").tokenizer
    texts = ["", " ", "\u200b", SPELT, chinese_text, *(text[:size] for text in english_texts for size in (9, 300, 900))]
    starts = [sentence_starts(text, "en") for text in texts]
    batch = [*map(sentences_of, encode_batch(known, texts), starts)]
    assert sum(len(sentences) > 1 for sentences in batch) > 20
    for text, of_text, sentences in zip(texts, starts, batch, strict=True):
        alone = [sentence.input_ids.tolist() for sentence in encode(known, text, of_text)]
        assert [sentence.input_ids.tolist() for sentence in sentences] == alone


def test_sentence_starts_cut_the_tokens_where_the_text_is_cut(
    tokenizer: Tokenizer, english_texts: list[str], chinese_text: str
) -> None:
    text = english_texts[1][:6_000]
    document, starts = encoded(tokenizer, text), sentence_starts(text, "en")
    assert document.input_ids.tolist() == whole(tokenizer, text)
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    borders = document.sentence_starts
    assert len(borders) == len(starts) > 30
    assert borders[0] == 0
    assert (np.diff(borders) > 0).all()
    for border, start in zip(borders[1:].tolist(), starts[1:].tolist(), strict=True):
        assert offsets[border][0] >= start
        assert text[start : offsets[border][0]].strip() == ""
        assert offsets[border - 1][0] < start
    chinese = encoded(tokenizer, chinese_text, "zh")  # without white space between sentences
    assert chinese.input_ids.tolist() == whole(tokenizer, chinese_text)
    assert len(chinese.sentence_starts) == 6
    assert (np.diff(chinese.sentence_starts) > 0).all()


def test_a_long_document_encoded_in_pieces_has_the_same_tokens(
    tokenizer: Tokenizer, english_texts: list[str], chinese_text: str, encoded_spans: Spans
) -> None:
    spaces, word = " " * 3_000, "wordwithoutanyend" * 400
    texts = {
        english_texts[2][:9_000]: 10,
        (chinese_text + "\n") * 30: 7,
        chinese_text * 30: 7,
        english_texts[3][:3_000] + spaces + english_texts[4][:3_000]: 6,
        english_texts[3][:3_000] + word + english_texts[4][:3_000]: 6,
        english_texts[3][:3_000] + "=" * 5_001 + english_texts[4][:3_000]: 6,
    }
    ordinary = [*texts][:3]
    for text, num_pieces in texts.items():
        encoded_spans.clear()
        document = encoded(tokenizer, text)
        assert document.input_ids.tolist() == whole(tokenizer, text)
        assert len(encoded_spans) >= num_pieces
        if text in ordinary:
            assert sum(end - begin for begin, end in encoded_spans) == len(text), "each part is encoded once"
            assert max(end - begin for begin, end in encoded_spans) < 2 * PIECE
        assert document.sentence_starts[0] == 0
        assert (np.diff(document.sentence_starts) >= 0).all()
        assert document.sentence_starts[-1] <= len(document.input_ids)


@pytest.mark.parametrize("stretch", ["\n \t\u3000", "endless", "="])
def test_a_long_stretch_without_the_end_of_a_word_is_encoded_in_one_piece(
    tokenizer: Tokenizer, stretch: str, encoded_spans: Spans
) -> None:
    text = stretch * (8 * PIECE // len(stretch))
    assert encoded(tokenizer, text).input_ids.tolist() == whole(tokenizer, text)
    assert encoded_spans == [(0, len(text))]


def test_pieces_are_joined_where_tokens_that_reach_over_words_are_out_of_step(encoded_spans: Spans) -> None:
    tab = "=\t" * 7
    scores = {"<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "<mask>": 0.0, "=": -4.0, "\t": -4.0, tab: -5.0}
    reaching = Tokenizer(models.Unigram(list(scores.items()), unk_id=3))
    reaching.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    text = tab * 300
    assert whole(reaching, text) == [7] * 300
    assert encoded(reaching, text).input_ids.tolist() == [7] * 300
    assert len(encoded_spans) > 6
    assert encoded_spans[-1] == (0, len(text))


def _sequence(name: str, *parts: Parts) -> Parts:
    return {"type": "Sequence", name: [*parts]}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
QUOTED = {"type": "Split", "pattern": {"Regex": '"[^"]*"'}, "behavior": "Removed", "invert": False}
REACHING = {  # parts of a tokenizer whose tokens depend on characters that are far away
    "no words": {"pre_tokenizer": BYTES},
    "no words, with a prefix": {"pre_tokenizer": BYTES | {"add_prefix_space": True}},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "quotations are removed": {"pre_tokenizer": _sequence("pretokenizers", QUOTED, BYTES | {"use_regex": True})},
    "tags are removed": {"normalizer": {"type": "Replace", "pattern": {"Regex": "<[^>]*>"}, "content": ""}},
    "spaces are removed": {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
    "seven characters are a word": {"pre_tokenizer": _sequence("pretokenizers", {"type": "FixedLength", "length": 7})},
    "removed in a sequence": {
        "normalizer": _sequence(
            "normalizers", {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "<[^>]*>"}, "content": ""}
        )
    },
}


@pytest.mark.parametrize("reason", REACHING)
def test_a_document_is_encoded_whole_where_tokens_depend_on_what_is_far_away(
    reason: str, tokenizers_by_kind: dict[str, Tokenizer], encoded_spans: Spans
) -> None:
    described = json.loads(tokenizers_by_kind["byte_level_whole"].to_str()) | REACHING[reason]
    reaching = Tokenizer.from_str(json.dumps(described))
    text = "an old boat " * 20
    for left, right in ("<>", '""', "  "):
        text += f"{left}{'by the shore ' * 150}{right}{'nobody had painted it ' * 60}"
    assert encoded(reaching, text).input_ids.tolist() == whole(reaching, text)
    assert encoded_spans == [(0, len(text))]


@settings(deadline=None, max_examples=40)
@given(text=STRETCHES, kind=st.sampled_from(["byte_level_trimmed", "byte_level_whole", "word_piece", "unigram"]))
def test_pieces_never_show_whatever_the_text_is_where_they_meet(
    text: str, kind: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_module, "PIECE_CHARACTERS", PIECE)
        patch.setattr(encoding_module, "CONTEXT_CHARACTERS", CONTEXT)
        document = encoded(tokenizers_by_kind[kind], text)
    assert document.input_ids.tolist() == whole(tokenizers_by_kind[kind], text)


def test_special_tokens_that_a_text_spells_out_are_plain_text(tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer, "tiny")
    assert set(whole(tokenizer, SPELT)) & set(vocabulary.special.all) - {vocabulary.special.unk}
    known = encoded(tokenizer, SPELT).input_ids
    assert set(known.tolist()) & set(vocabulary.special.all) <= {vocabulary.special.unk}
    assert len(known) > len(SPELT.split())
    for copied in (copy.deepcopy(vocabulary), pickle.loads(pickle.dumps(vocabulary))):
        sentences = encode(copied.tokenizer, SPELT, sentence_starts(SPELT, "en"))
        assert joined(sentences).input_ids.tolist() == known.tolist()


def test_texts_without_spelt_special_tokens_keep_the_ids_of_the_pretrained_tokenizer(tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer, "tiny")
    tokenizer_ids = tokenizer.get_vocab(with_added_tokens=True)
    specials = {name: token_id for name, token_id in tokenizer_ids.items() if token_id in vocabulary.special.all}
    assert len(specials) == 5
    assert {vocabulary.special.cls, vocabulary.special.sep, vocabulary.special.mask} < set(specials.values())
    assert vocabulary.size == max(tokenizer_ids.values()) + 1
    assert set(vocabulary.maskable.drawable.tolist()) == set(tokenizer_ids.values()) - set(specials.values())
    short = copy.deepcopy(tokenizer)
    short.enable_truncation(8)
    short.enable_padding(length=64)
    assert encoded(short, SPELT).input_ids.tolist() == encoded(tokenizer, SPELT).input_ids.tolist()
    assert short.truncation is not None


def test_ids_that_no_token_has_are_not_drawn_and_an_empty_text_has_no_tokens() -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "lake": 7, "boat": 9}
    gappy = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    vocabulary = vocabulary_of(gappy, "gappy")
    assert vocabulary.size == 10
    assert vocabulary.maskable.drawable.tolist() == np.flatnonzero(vocabulary.maskable.is_maskable).tolist() == [7, 9]
    gappy.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for text in ("", " \n\t "):
        assert encoded(gappy, text).input_ids.tolist() == []


@pytest.mark.parametrize(("token", "role"), [("[MASK]", "mask"), ("[CLS]", "cls"), ("[SEP]", "sep"), ("[PAD]", "pad")])
def test_a_tokenizer_without_a_token_that_rows_need_is_refused(token: str, role: str) -> None:
    tokens = [other for other in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "lake") if other != token]
    lacking = Tokenizer(models.WordLevel({other: index for index, other in enumerate(tokens)}, unk_token="[UNK]"))
    with pytest.raises(DataError, match=f"lacking: the tokenizer has no {role} token"):
        vocabulary_of(lacking, "lacking")


def test_a_tokenizer_that_nobody_has_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(DataError, match=str(name)) as raised:
            load_vocabulary(str(name))
        assert "\n" not in str(raised.value)


def test_a_vocabulary_alone_is_refused_with_the_file_that_makes_it_a_tokenizer(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "lake"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    with pytest.raises(DataError, match=r"config\.json"):
        load_vocabulary(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    assert load_vocabulary(str(tmp_path)).size == len(words)


def test_tokenizer_that_runs_python_code_is_refused() -> None:
    class Words:
        """What RoFormer's tokenizer calls for Chinese words."""

        def pre_tokenize(self, text: object) -> None: ...

    pretrained = tiny_tokenizer("bert", 0)
    pretrained.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Words())
    with pytest.raises(DataError, match=r"mine: its tokenizer \(BertTokenizer\) splits words with Python code"):
        vocabulary_of_pretrained(pretrained, "mine")
