"""Definitions of tokenizers (tokenizer.json) that are known field by field.

If a tokenizer has another field or value, `tokenizers` encodes its texts, or its documents are not cut into pieces.
"""

import json
from types import EllipsisType
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL_TOKEN = {"id": int, "content": str, "special": True}  # which is not looked for in a text
SPECIAL_TOKEN |= {"single_word": bool, "lstrip": bool, "rstrip": bool, "normalized": bool}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": bool, "trim_offsets": bool, "use_regex": bool}
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": bool, "handle_chinese_chars": bool}
BERT_NORMALIZER |= {"strip_accents": (None, bool), "lowercase": bool}
FRAME = {"SpecialToken": {"id": str, "type_id": int}}
FRAMED_ONCE = [FRAME, {"Sequence": {"id": "A", "type_id": int}}, FRAME]  # a template may also repeat the text
POST_PROCESSOR = (
    None,
    BYTE_LEVEL,
    {"type": "RobertaProcessing", "sep": list, "cls": list, "trim_offsets": bool, "add_prefix_space": bool},
    {"type": "BertProcessing", "sep": list, "cls": list},
    {"type": "TemplateProcessing", "single": FRAMED_ONCE, "pair": list, "special_tokens": dict},
)
COMMON = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [SPECIAL_TOKEN, ...]}
COMMON |= {"post_processor": POST_PROCESSOR, "decoder": object}
BPE = {"type": "BPE", "vocab": dict, "merges": list, "dropout": None, "ignore_merges": bool, "byte_fallback": False}
BPE |= {"continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, "")}
BPE |= {"unk_token": (None, str), "fuse_unk": bool}  # without effect if every byte has a token
BYTE_LEVEL_BPE = COMMON | {"normalizer": None, "model": BPE}
BYTE_LEVEL_BPE |= {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": False, "use_regex": True}}
PIECES = {"type": "WordPiece", "vocab": dict, "unk_token": str, "continuing_subword_prefix": "##"}
PIECES |= {"max_input_chars_per_word": 100}
WORD_PIECE = COMMON | {"normalizer": BERT_NORMALIZER, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": PIECES}
SPLITTERS = (  # at each space
    {"type": ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")},
    BYTE_LEVEL | {"use_regex": True},
    {"type": "Metaspace", "replacement": str, "prepend_scheme": str, "split": True},
)
LOCAL = (  # what they do around a space depends on it and a few characters beside it
    *SPLITTERS,
    BERT_NORMALIZER,
    {"type": ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")},
    {"type": "Precompiled", "precompiled_charsmap": str},
    {"type": "Strip", "strip_left": bool, "strip_right": bool},
    {"type": "Replace", "pattern": {"Regex": (" {2,}", r"\s+", r"\s{2,}|[\n\r\t]")}, "content": " "},
    {"type": "Replace", "pattern": {"String": ("\n", "\r", "\t")}, "content": " "},
    {"type": "Replace", "pattern": {"String": ("``", "''")}, "content": '"'},
    {"type": "Punctuation", "behavior": str},
    {"type": "Digits", "individual_digits": bool},
)


def is_among(value: object, allowed: Any) -> bool:
    """Returns whether a part of a definition is allowed.

    A tuple allows what one of its items does, a type its values, a dictionary and a list those with the same items, and
    a list that ends with ... any number of the item before.
    """
    match allowed:
        case tuple():
            return any(is_among(value, one) for one in allowed)
        case dict():
            is_same = isinstance(value, dict) and value.keys() == allowed.keys()
            return is_same and all(is_among(value[name], allowed[name]) for name in allowed)
        case [one, EllipsisType()]:
            return isinstance(value, list) and all(is_among(item, one) for item in value)
        case list():
            return isinstance(value, list) and len(value) == len(allowed) and all(map(is_among, value, allowed))
        case type():
            return allowed in (object, type(value))
    return type(value) is type(allowed) and value == allowed


def has_every_byte(vocabulary: dict[str, int]) -> bool:
    """Returns whether a vocabulary is written in the 256 letters that stand for bytes, and has each of them."""
    letters = {*ByteLevel.alphabet()}
    return letters <= vocabulary.keys() and letters.issuperset("".join(vocabulary))


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """Returns whether the tokens after a space that follows another character do not depend on the text before it."""
    normalizers, splitters = map(_parts, (tokenizer.normalizer, tokenizer.pre_tokenizer))
    is_split = any(is_among(part, SPLITTERS) for part in splitters)
    return is_split and all(is_among(part, LOCAL) for part in (*normalizers, *splitters))


def _parts(component: Any) -> list[Any]:
    """Returns the descriptions of a normalizer or pre-tokenizer, those in a sequence one by one."""
    described = json.loads(component.__getstate__()) if component else None
    match described:
        case None:
            return []
        case {"type": "Sequence", "normalizers": [*parts]} | {"type": "Sequence", "pretokenizers": [*parts]}:
            return parts
    return [described]
