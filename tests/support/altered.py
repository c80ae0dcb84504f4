"""Tiny tokenizers whose tokenizer.json is not what transformers rebuilds from their class."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.families import tiny_config, tiny_tokenizer

Described = dict[str, Any]  # the content of a tokenizer.json
Change = Callable[[Described], object]
TEXT = "In 1903 the Écoles ﬁned ½ of OUR boatyard for 中国 and overhauled it. "
NO_CHANGES = base64.b64encode(bytes([0, 4, 0, 0]) + bytes(1025)).decode()  # an empty table of SentencePiece


def put(part: Any, *keys: str) -> Change:
    """Returns a change that replaces the part at these keys."""

    def change(described: Described) -> None:
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = part

    return change


def append(key: str, *parts: Described) -> Change:
    """Returns a change that lets these parts follow those that are there."""

    def change(described: Described) -> None:
        kept = [described[key]] if described[key] else []
        described[key] = {"type": "Sequence", f"{key.replace('_', '')}s": [*kept, *parts]}

    return change


def rename_pieces(described: Described) -> None:
    model = described["model"]
    model["continuing_subword_prefix"] = "@@"
    model["vocab"] = {piece.replace("##", "@@"): number for piece, number in model["vocab"].items()}


def add_word(described: Described) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    described["added_tokens"].append({"id": len(described["model"]["vocab"]) + 3, "content": "boatyard", **flags})


def strip_after_mask(described: Described) -> None:
    for token in described["added_tokens"]:
        token["rstrip"] = "mask" in token["content"].lower()


REPLACE = {"type": "Replace", "pattern": {"String": "boat"}, "content": "s"}
ANY = {
    "NFKC": put({"type": "NFKC"}, "normalizer"),
    "Lowercase": put({"type": "Lowercase"}, "normalizer"),
    "and Lowercase": append("normalizer", {"type": "Lowercase"}, REPLACE),
    "Digits": append("pre_tokenizer", {"type": "Digits", "individual_digits": True}),
    "WhitespaceSplit": put({"type": "WhitespaceSplit"}, "pre_tokenizer"),
    "added word": add_word,
    "flags of the mask": strip_after_mask,
    "no post-processor": put(None, "post_processor"),
    "decoder": put({"type": "Fuse"}, "decoder"),
}
OWN_NORMALIZER = {"no normalizer": put(None, "normalizer")}
BERT = {
    "max_input_chars_per_word": put(4, "model", "max_input_chars_per_word"),
    "prefix": rename_pieces,
    "strip_accents": put(False, "normalizer", "strip_accents"),
}
UNIGRAM = {"Precompiled": put({"type": "Precompiled", "precompiled_charsmap": NO_CHANGES}, "normalizer")}
ALTERATIONS = {  # DistilBERT and ELECTRA have BERT's tokenizer
    ("bert", 0): ANY | OWN_NORMALIZER | BERT,
    **dict.fromkeys((("roberta", 1), ("modernbert", 3)), ANY),
    **dict.fromkeys((("xlm-roberta", 1), ("camembert", 1)), ANY | UNIGRAM),
    ("albert", 0): ANY | OWN_NORMALIZER | UNIGRAM,
}


def tokenizer_folder(folder: Path, family: str, pad: int) -> Path:
    """Writes a tiny tokenizer with the config.json of its model, and returns the folder."""
    tiny_tokenizer(family, pad).save_pretrained(folder)
    tiny_config(family, pad).save_pretrained(folder)
    return folder


def alter(folder: Path, change: Change, name: str = "tokenizer.json") -> Path:
    """Changes a JSON file in a folder, and returns the folder."""
    path = folder / name
    described = json.loads(path.read_text(encoding="utf-8"))
    before = json.dumps(described)
    change(described)
    assert json.dumps(described) != before
    path.write_text(json.dumps(described), encoding="utf-8")
    return folder


def bake_length(described: Described) -> None:
    """Writes a truncation and padding into a tokenizer.json, as those of sentence-transformers have it."""
    described["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    pad = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]", "pad_to_multiple_of": None}
    described["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", **pad}
