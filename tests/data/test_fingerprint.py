"""Fingerprints: kept when a tokenizer is saved and loaded, changed by whatever changes the tokens of a text."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from longmlm.data.vocabulary import load_vocabulary, vocabulary_of


def test_the_fingerprint_survives_saving_and_differs_between_vocabularies(
    tokenizers_by_kind: dict[str, Tokenizer], tmp_path: Path
) -> None:
    fingerprints = set()
    for kind, tokenizer in tokenizers_by_kind.items():
        tokens = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]") if kind == "word_piece" else ()
        names = tokens or ("<s>", "</s>", "<mask>", "<pad>", "<unk>")
        roles = dict(zip(("cls_token", "sep_token", "mask_token", "pad_token", "unk_token"), names, strict=True))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(tmp_path / kind)
        before, after = vocabulary_of(tokenizer, kind), load_vocabulary(str(tmp_path / kind))
        assert (after.fingerprint, after.special, after.size) == (before.fingerprint, before.special, before.size)
        fingerprints.add(after.fingerprint)
    assert len(fingerprints) == 3  # the two byte-level tokenizers differ in their offsets only


def test_the_fingerprint_does_not_follow_the_last_digit_of_a_score() -> None:
    special = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("<pad>", 0.0), ("<mask>", 0.0)]
    drawn = np.random.default_rng(0).uniform(-20, 0, 2_000)
    made = Tokenizer(models.Unigram([*special, *((f"p{index}", score) for index, score in enumerate(drawn))], 2))
    once = Tokenizer.from_str(made.to_str())
    assert once.to_str() != made.to_str()
    again = Tokenizer(models.Unigram([tuple(piece) for piece in json.loads(once.to_str())["model"]["vocab"]], 2))
    fingerprints = {vocabulary_of(tokenizer, "scores").fingerprint for tokenizer in (made, once, again)}
    assert len(fingerprints) == 1


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("word_piece", "normalizer", {"lowercase": False}),
        ("word_piece", "normalizer", {"strip_accents": False}),
        ("word_piece", "pre_tokenizer", {"type": "Whitespace"}),
        ("word_piece", "model", {"max_input_chars_per_word": 7}),
        ("byte_level_whole", "pre_tokenizer", {"add_prefix_space": True}),
        ("byte_level_whole", "model", {"merges": lambda merges: merges[::-1]}),
        ("unigram", "model", {"vocab": lambda pieces: [[piece, score / 2] for piece, score in pieces]}),
    ],
)
def test_the_fingerprint_differs_between_tokenizers_of_one_vocabulary(
    kind: str, part: str, change: dict, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    described = json.loads(tokenizers_by_kind[kind].to_str())
    for name, value in change.items():
        described[part][name] = value(described[part][name]) if callable(value) else value
    one = vocabulary_of(tokenizers_by_kind[kind], kind)
    other = vocabulary_of(Tokenizer.from_str(json.dumps(described)), kind)
    assert other.tokenizer.get_vocab() == one.tokenizer.get_vocab()
    assert other.fingerprint != one.fingerprint
