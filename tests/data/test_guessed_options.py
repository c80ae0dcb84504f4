"""Options that no file states: those with which the tokens of a vocabulary can occur."""

import json
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
        (CASED, "The Lake", ["The", "Lake"], "do_lower_case = |do_lower_case: it is false"),
        (UMLAUTS, "Für", ["für"], "strip_accents: it is false"),
    ],
)
def test_case_and_accents_are_those_of_the_vocabulary(
    family: str, words: list[str], text: str, expected: list[str], option: str | None, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", words, family)
    assert tokens(folder, text) == expected
    notes = load_vocabulary(str(folder)).notes
    assert load_tokenizer(str(folder), folder).notes == notes
    assert len(notes) == (option is not None)
    assert not option or any(part in notes[0] for part in option.split("|"))


@pytest.mark.parametrize(("stated", "expected"), [(True, ["the", "lake"]), (False, ["The", "Lake"])])
def test_stated_option_is_followed(stated: bool, expected: list[str], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", CASED, do_lower_case=stated)
    assert tokens(folder, "The Lake") == expected
    assert load_vocabulary(str(folder)).notes == ()
    unrelated = model_folder(tmp_path / "other", CASED, model_max_length=512)
    assert tokens(unrelated, "The Lake") == ["The", "Lake"]


def test_a_few_words_that_cannot_occur_are_noted(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", [*LOWER, "COVID"])
    assert tokens(folder, "Lake") == ["lake"]
    (note,) = load_vocabulary(str(folder)).notes
    assert "COVID" in note and "state do_lower_case = false" in note


def test_chinese_words_are_refused_unless_it_is_stated_how_texts_are_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="words of several Chinese characters, such as 中国人民"):
        load_vocabulary(str(model_folder(tmp_path / "model", CHINESE)))
    stated = model_folder(tmp_path / "stated", CHINESE, tokenize_chinese_chars=False)
    assert tokens(stated, "中国") == ["中国"]
    characters = model_folder(tmp_path / "characters", [*LOWER, *"中国人民法院"])
    assert tokens(characters, "中国") == ["中", "国"]


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
