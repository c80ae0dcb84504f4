"""Tokenizers without a tokenizer.json: options that their vocabulary was made with have to be stated."""

import json
import re
import string
import sys
from pathlib import Path

import pytest

from longmlm.data.vocabulary import load_vocabulary
from longmlm.errors import DataError, ModelError
from longmlm.model.loading import load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>"]
LOWER = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), "lake", "boat", "the"]
CASED = [*LOWER, *string.ascii_uppercase, "The", "Lake"]
UMLAUTS = [*LOWER, "ä", "ö", "ü", "für", "##ö"]
CHINESE = [*LOWER, *"中国人民法院", *("中国", "人民", "法院", "中国人民")]
FAMILIES = ("bert", "electra", "distilbert", "mpnet", "nomic_bert")


def model_folder(folder: Path, words: list[str], family: str = "bert", **config: object) -> Path:
    """Writes a vocab.txt with the config.json of a family, and a tokenizer_config.json if something is in it."""
    folder.mkdir()
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"] if family == "mpnet" else SPECIAL
    (folder / "vocab.txt").write_text("\n".join([*special, *words]) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tokens(folder: Path, text: str) -> list[str]:
    return load_vocabulary(str(folder)).tokenizer.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("words", "text", "expected", "option"),
    [
        (LOWER, "The Lake", ["the", "lake"], None),
        ([*LOWER, "COVID"], "The Lake", ["the", "lake"], None),
        (CASED, "The Lake", ["The", "Lake"], {"do_lower_case": False}),
        (UMLAUTS, "Für", ["für"], {"strip_accents": False}),
        (CHINESE, "中国", ["中国"], {"tokenize_chinese_chars": False}),
        ([*LOWER, *"中国人民法院"], "中国", ["中", "国"], None),
    ],
)
def test_an_option_that_the_vocabulary_was_made_with_has_to_be_stated(
    family: str, words: list[str], text: str, expected: list[str], option: dict[str, bool] | None, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", words, family)
    if option:
        for load in (load_vocabulary, lambda name: load_tokenizer(name, folder)):
            with pytest.raises(
                DataError, match=rf"write {re.escape(json.dumps(option))} to its tokenizer_config\.json"
            ):
                load(str(folder))
        (folder / "tokenizer_config.json").write_text(json.dumps(option))
    assert tokens(folder, text) == expected


def test_a_stated_option_is_followed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", CASED, do_lower_case=True, model_max_length=512)
    assert tokens(folder, "The Lake") == ["the", "lake"]


@pytest.mark.parametrize("option", [{"do_basic_tokenize": False}, {"never_split": ["lake"]}])
def test_option_that_transformers_ignores_is_refused(option: dict, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"do_basic_tokenize or never_split.*put a tokenizer\.json next to it"):
        load_vocabulary(str(model_folder(tmp_path / "model", LOWER, **option)))


def test_family_is_not_taken_from_the_name_of_the_folder(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "bert-of-mine", LOWER)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json has no model_type"):
        load_vocabulary(str(folder))


def test_mask_takes_the_space_before_it_where_pieces_do(tmp_path: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġ"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    tokenizer = load_tokenizer("mine", tmp_path).tokenizer
    ids = tokenizer("a <mask> b", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "<mask>", "Ġ", "b"]


def test_missing_package_of_a_family_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    folder = model_folder(tmp_path / "model", LOWER, "roformer")
    with pytest.raises(DataError, match="You need to install rjieba"):
        load_vocabulary(str(folder))
