"""Fields of definitions: with each value that a fast encoder takes, it gives the tokens of `tokenizers`."""

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer

from longmlm.data.definitions import BYTE_LEVEL_BPE, WORD_PIECE, is_among
from longmlm.data.encoding import encode
from longmlm.data.fast_encoding import fast_encoder, hostile_texts
from longmlm.data.sentences import sentence_starts

Definition = dict[str, Any]
Path = tuple[str | int, ...]
KINDS = {"byte_level_trimmed": BYTE_LEVEL_BPE, "word_piece": WORD_PIECE}
FLAGS = (True, False)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WORD_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLIT = {"type": "Split", "pattern": {"Regex": WORD_REGEX}, "behavior": "Isolated", "invert": False}
ROBERTA = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True}
BERT = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
CLS, SEP = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("a", "b"))
FIRST, SECOND = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT_NORMALIZER |= {"strip_accents": None, "lowercase": False}


def _template(*single: Definition) -> Definition:
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in enumerate("ab")}
    pair = [FIRST, SECOND]
    return {"type": "TemplateProcessing", "single": [*single], "pair": pair, "special_tokens": special}


def _sequence(name: str, *parts: Definition) -> Definition:
    return {"type": "Sequence", name: [*parts]}


# For each field, the values with which tokens are compared here, and some of those that are left to tokenizers.
COMMON: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "version": (("1.0",), ("1.1", "2.0", None)),
    "truncation": ((None,), ({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},)),
    "padding": ((None,), ({"strategy": "BatchLongest"},)),
    "decoder": ((None, BYTE_LEVEL, {"type": "WordPiece", "prefix": "##", "cleanup": True}), ()),
    "added_tokens": (([],), (None, {})),
    "added_tokens.0.id": ((0, 2_000), ("0",)),
    "added_tokens.0.content": (("<s>", "the", " ", "=="), (0,)),
    "added_tokens.0.single_word": (FLAGS, (0,)),
    "added_tokens.0.lstrip": (FLAGS, (None,)),
    "added_tokens.0.rstrip": (FLAGS, (None,)),
    "added_tokens.0.normalized": (FLAGS, (None,)),
    "added_tokens.0.special": ((True,), (False, None)),
    "post_processor": (
        (
            None,
            *(BYTE_LEVEL | {"trim_offsets": trims, "add_prefix_space": adds} for trims in FLAGS for adds in FLAGS),
            *(ROBERTA | {"trim_offsets": trims, "add_prefix_space": adds} for trims in FLAGS for adds in FLAGS),
            BERT,
            _template(CLS, FIRST, SEP),
        ),
        (
            _template(CLS, FIRST, FIRST, SEP),
            _template(CLS, SECOND, SEP),
            _template(FIRST),
            _sequence("processors", BYTE_LEVEL, BYTE_LEVEL),
            {"type": "BertProcessing"},
        ),
    ),
}
FIELDS = {
    "byte_level_trimmed": COMMON
    | {
        "normalizer": (
            (None,),
            ({"type": "NFC"}, {"type": "Lowercase"}, BERT_NORMALIZER, _sequence("normalizers")),
        ),
        "pre_tokenizer": (
            (BYTE_LEVEL,),
            (None, {"type": "Whitespace"}, _sequence("pretokenizers", SPLIT, BYTE_LEVEL | {"use_regex": False})),
        ),
        "pre_tokenizer.type": (("ByteLevel",), ("Metaspace", "CharDelimiterSplit")),
        "pre_tokenizer.add_prefix_space": ((False,), (True, 0)),
        "pre_tokenizer.trim_offsets": (FLAGS, (None,)),
        "pre_tokenizer.use_regex": ((True,), (False, 1)),
        "model.type": (("BPE",), ("Unigram", "WordLevel")),
        "model.dropout": ((None,), (0.0, 0.1, 1.0)),
        "model.unk_token": ((None, "<unk>", "a", "nothing"), (0,)),
        "model.continuing_subword_prefix": ((None, ""), ("##",)),
        "model.end_of_word_suffix": ((None, ""), ("</w>",)),
        "model.fuse_unk": (FLAGS, (None,)),
        "model.byte_fallback": ((False,), (True,)),
        "model.ignore_merges": (FLAGS, (None,)),
    },
    "word_piece": COMMON
    | {
        "normalizer": ((BERT_NORMALIZER,), (None, {"type": "Lowercase"}, _sequence("normalizers", BERT_NORMALIZER))),
        "normalizer.type": (("BertNormalizer",), ("Bert",)),
        "normalizer.clean_text": (FLAGS, (None,)),
        "normalizer.handle_chinese_chars": (FLAGS, (None,)),
        "normalizer.strip_accents": ((None, *FLAGS), (0,)),
        "normalizer.lowercase": (FLAGS, (None,)),
        "pre_tokenizer": (
            ({"type": "BertPreTokenizer"},),
            (None, {"type": "Whitespace"}, _sequence("pretokenizers", {"type": "BertPreTokenizer"})),
        ),
        "pre_tokenizer.type": (("BertPreTokenizer",), ("WhitespaceSplit",)),
        "model.type": (("WordPiece",), ("WordLevel", "BPE")),
        "model.unk_token": (("[UNK]", "[PAD]", "a"), (None,)),
        "model.continuing_subword_prefix": (("##",), ("", "@@")),
        "model.max_input_chars_per_word": ((100,), (99, 101, 1_000)),
    },
}
CASES = [
    (kind, field, value, is_compared)
    for kind, fields in FIELDS.items()
    for field, groups in fields.items()
    for values, is_compared in zip(groups, FLAGS, strict=True)
    for value in values
]


@cache
def battery() -> tuple[str, ...]:
    """Texts on which encoders differ: each kind of character beside every other one, and words that are long."""
    kinds = "a Z\n\t\r\u00a0\u30007½'-_éİßﬁ\u0301中ー한\u1112\u1161ה"
    kinds += "\u0939\u094dไ😀\u200d\ufe0f\u200b\ufeff\x00\x1b\x7f\x85\ufffd\uffff\ue000"
    pairs = "".join(left + right for left in kinds for right in kinds)
    spelt = "x<s>y <mask> [MASK][SEP]z [UNK]. the == a\n\nb  c   d\r\n\r\n e\t\tf I'll DON'T don't 'S"
    long = [size * "a" + " " + size * "é" + "b. " for size in (99, 100, 101, 3_000)]
    return (*(text[:1_500] for text in hostile_texts()), pairs, spelt, f" {spelt} ", *long, "", " ", "\n")


def mutated(definition: Definition, field: str, value: object) -> Definition:
    """Returns the definition with another value of a field."""
    changed = copy.deepcopy(definition)
    *outer, last = (int(name) if name.isdigit() else name for name in field.split("."))
    part: Any = changed
    for name in outer:
        part = part[name]
    part[last] = value
    return changed


def definition_of(tokenizer: Tokenizer) -> Definition:
    return json.loads(tokenizer.to_str())


@pytest.mark.parametrize(("kind", "field", "value", "is_compared"), CASES)
def test_a_fast_encoder_gives_the_same_tokens_with_each_value_that_it_takes(
    kind: str, field: str, value: object, is_compared: bool, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    changed = mutated(definition_of(tokenizers_by_kind[kind]), field, value)
    assert is_among(changed, KINDS[kind]) == is_compared
    if not is_compared:
        assert not any(is_among(changed, one) for one in KINDS.values())
        return
    tokenizer = Tokenizer.from_str(json.dumps(changed))
    make_encoder = fast_encoder(tokenizer)
    assert make_encoder is not None
    texts = battery()
    starts = [sentence_starts(text, "en") for text in texts]
    found = make_encoder().sentences(texts, starts)
    assert sum(sentences is not None for sentences in found) > len(texts) * 3 / 4
    for text, start, sentences in zip(texts, starts, found, strict=True):
        if sentences is not None:
            expected = [sentence.input_ids.tolist() for sentence in encode(tokenizer, text, start)]
            assert [sentence.input_ids.tolist() for sentence in sentences] == expected


def _fields(part: object, path: Path = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name of each field of a definition that has no fields itself, with the part that it is in."""
    for name, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if name in ("vocab", "merges", "post_processor", "decoder"):
            continue
        if isinstance(value, dict | list):
            yield from _fields(value, (*path, name))
        elif isinstance(part, dict):
            yield ".".join(map(str, (*path, name))), part


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_in_the_table_and_an_unknown_or_a_missing_one_is_left_to_tokenizers(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    definition = definition_of(tokenizers_by_kind[kind])
    assert is_among(definition, KINDS[kind])
    names = [name for name, _ in _fields(definition)]
    assert {re.sub(r"\d+", "0", name) for name in names} <= FIELDS[kind].keys()
    assert len(names) > 20
    for name, part in [*_fields(definition)]:
        last = name.split(".")[-1]
        value = part.pop(last)
        assert not is_among(definition, KINDS[kind]), f"without {name}"
        part |= {last: value, "added_later": None}
        assert not is_among(definition, KINDS[kind]), f"with a field beside {name}"
        del part["added_later"]
    assert is_among(definition, KINDS[kind])


@pytest.mark.parametrize("token", ["Ġ", "天", "é x"])
def test_a_vocabulary_without_a_byte_or_with_other_letters_is_left_to_tokenizers(
    token: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    definition = definition_of(tokenizers_by_kind["byte_level_trimmed"])
    model = definition["model"]
    if token in model["vocab"]:
        model["vocab"] = {name: number for name, number in model["vocab"].items() if token not in name}
        model["merges"] = []
    else:
        model["vocab"][token] = len(model["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    assert is_among(definition_of(tokenizer), BYTE_LEVEL_BPE)
    assert fast_encoder(tokenizer) is None


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("byte_level_trimmed", "pre_tokenizer.use_regex", False),
        ("byte_level_trimmed", "pre_tokenizer.add_prefix_space", True),
        ("byte_level_trimmed", "model.dropout", 0.1),
        ("byte_level_trimmed", "model.end_of_word_suffix", "</w>"),
        ("byte_level_trimmed", "post_processor", _template(CLS, FIRST, FIRST, SEP)),
        ("word_piece", "pre_tokenizer", {"type": "WhitespaceSplit"}),
        ("word_piece", "model.max_input_chars_per_word", 1_000),
    ],
)
def test_another_value_has_no_fast_encoder(
    kind: str, field: str, value: object, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    changed = mutated(definition_of(tokenizers_by_kind[kind]), field, value)
    assert fast_encoder(Tokenizer.from_str(json.dumps(changed))) is None
