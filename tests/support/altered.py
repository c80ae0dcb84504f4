"""Tiny tokenizers whose tokenizer.json is not what transformers rebuilds from their class."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.families import tiny_config, tiny_tokenizer

Described = dict[str, Any]  # the content of a tokenizer.json
TEXT = "In 1903 the Écoles ﬁned ½ of OUR boatyard for 中国 and overhauled it. "
NO_CHANGES = base64.b64encode(bytes([0, 4, 0, 0]) + bytes(1025)).decode()  # an empty table of SentencePiece


def change_normalizer(*parts: Described) -> Callable[[Described], None]:
    def change(described: Described) -> None:
        kept = [described["normalizer"]] if described["normalizer"] else []
        described["normalizer"] = {"type": "Sequence", "normalizers": [*kept, *parts]}

    return change


def use_normalizer(part: Described | None) -> Callable[[Described], None]:
    return lambda described: described.update(normalizer=part)


def split_digits(described: Described) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [described["pre_tokenizer"], digits]}


def split_at_white_space(described: Described) -> None:
    described["pre_tokenizer"] = {"type": "WhitespaceSplit"}


def limit_words(described: Described) -> None:
    described["model"]["max_input_chars_per_word"] = 4


def rename_pieces(described: Described) -> None:
    model = described["model"]
    model["continuing_subword_prefix"] = "@@"
    model["vocab"] = {piece.replace("##", "@@"): number for piece, number in model["vocab"].items()}


def keep_accents(described: Described) -> None:
    described["normalizer"]["strip_accents"] = False


def add_word(described: Described) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    described["added_tokens"].append({"id": len(described["model"]["vocab"]) + 3, "content": "boatyard", **flags})


def strip_after_mask(described: Described) -> None:
    for token in described["added_tokens"]:
        token["rstrip"] = "mask" in token["content"].lower()


def end_without_separator(described: Described) -> None:
    described["post_processor"] = None


def decode_plainly(described: Described) -> None:
    described["decoder"] = {"type": "Fuse"}


ANY = {
    "NFKC": use_normalizer({"type": "NFKC"}),
    "Lowercase": use_normalizer({"type": "Lowercase"}),
    "and Lowercase": change_normalizer(
        {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "boat"}, "content": "s"}
    ),
    "Digits": split_digits,
    "WhitespaceSplit": split_at_white_space,
    "added word": add_word,
    "flags of the mask": strip_after_mask,
    "no post-processor": end_without_separator,
    "decoder": decode_plainly,
}
OWN_NORMALIZER = {"no normalizer": use_normalizer(None)}
BERT = {"max_input_chars_per_word": limit_words, "prefix": rename_pieces, "strip_accents": keep_accents}
UNIGRAM = {"Precompiled": use_normalizer({"type": "Precompiled", "precompiled_charsmap": NO_CHANGES})}
ALTERATIONS = {
    **dict.fromkeys((("bert", 0), ("distilbert", 0), ("electra", 0)), ANY | OWN_NORMALIZER | BERT),
    **dict.fromkeys((("roberta", 1), ("modernbert", 3)), ANY),
    **dict.fromkeys((("xlm-roberta", 1), ("camembert", 1)), ANY | UNIGRAM),
    ("albert", 0): ANY | OWN_NORMALIZER | UNIGRAM,
}


def tokenizer_folder(folder: Path, family: str, pad: int) -> Path:
    """Writes a tiny tokenizer with the config.json of its model, and returns the folder."""
    tiny_tokenizer(family, pad).save_pretrained(folder)
    tiny_config(family, pad).save_pretrained(folder)
    return folder


def alter(folder: Path, change: Callable[[Described], object], name: str = "tokenizer.json") -> Path:
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
