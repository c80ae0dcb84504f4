"""Tokenizers are those of their files: what transformers rebuilds is compared with tokenizer.json."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from longmlm.data.pretrained import load_pretrained, save_pretrained
from longmlm.data.tokenizer_parts import OPTIONS, canonical
from longmlm.data.vocabulary import load_vocabulary, vocabulary_of_pretrained
from longmlm.errors import DataError
from tests.support.altered import ALTERATIONS, TEXT, alter, bake_length, tokenizer_folder
from tests.support.families import SPECIAL, SPECIAL_OF_OTHERS

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CASES = [(*kind, name) for kind, changes in ALTERATIONS.items() for name in changes]
FAMILIES = [kind for kind in SPECIAL | SPECIAL_OF_OTHERS if kind != ("roberta", 3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, Path], Path]:
    """Returns a function that copies the files of a family's tokenizer."""
    made: dict[tuple[str, int], Path] = {}

    def copied(family: str, pad: int, to: Path) -> Path:
        if (family, pad) not in made:
            made[family, pad] = tokenizer_folder(tmp_path_factory.mktemp(family) / "model", family, pad)
        return Path(shutil.copytree(made[family, pad], to))

    return copied


def write(path: Path, **values: object) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | values))


def given(folder: Path) -> Tokenizer:
    """The tokenizer of the file, as other libraries read it, without its lengths."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def described(tokenizer: Tokenizer) -> dict:
    return canonical(json.loads(tokenizer.to_str()))


@pytest.mark.parametrize(("family", "pad", "name"), CASES)
def test_tokens_and_saved_file_are_those_of_the_given_file(
    family: str, pad: int, name: str, folders: Callable, tmp_path: Path
) -> None:
    base = alter(folders(family, pad, tmp_path / "base"), ALTERATIONS[family, pad][name])
    expected = given(base)
    ids = expected.encode(TEXT, add_special_tokens=False).ids
    assert load_vocabulary(str(base)).tokenizer.encode(TEXT, add_special_tokens=False).ids == ids
    loaded = load_pretrained("mine", base)
    out = Path(shutil.copytree(base, tmp_path / "out"))
    save_pretrained(loaded.tokenizer, out, INPUTS)
    assert described(given(out)) == described(expected)
    again = AutoTokenizer.from_pretrained(out)
    assert again(TEXT, verbose=False)["input_ids"] == expected.encode(TEXT).ids
    assert again.decode(ids, skip_special_tokens=True) == expected.decode(ids)
    before, after = (vocabulary_of_pretrained(tokenizer, name) for tokenizer in (loaded.tokenizer, again))
    assert after.fingerprint == before.fingerprint
    assert load_pretrained("mine", out).notes == ()


@pytest.mark.parametrize(("family", "pad"), FAMILIES)
def test_tokenizer_that_transformers_rebuilds_right_keeps_its_class_and_fingerprint(
    family: str, pad: int, folders: Callable, tmp_path: Path
) -> None:
    base = folders(family, pad, tmp_path / "base")
    rebuilt, loaded = AutoTokenizer.from_pretrained(base), load_pretrained("mine", base)
    assert type(loaded.tokenizer) is type(rebuilt)
    assert loaded.notes == ()
    fingerprints = {vocabulary_of_pretrained(one, "mine").fingerprint for one in (rebuilt, loaded.tokenizer)}
    assert fingerprints == {load_vocabulary(str(base)).fingerprint}


def test_lengths_in_the_file_are_not_loaded_and_not_saved(folders: Callable, tmp_path: Path) -> None:
    base = alter(folders("bert", 0, tmp_path / "base"), bake_length)
    lengths = {"max_len": 16, "max_length": 8, "stride": 0, "truncation_strategy": "longest_first", "truncation": True}
    write(base / "tokenizer_config.json", **lengths, fast_tokenizer_files=["tokenizer.json"])
    loaded = load_pretrained("mine", base)
    assert loaded.notes == ()
    loaded.tokenizer(TEXT, truncation=True, max_length=6, padding="max_length")  # which stays in the backend
    save_pretrained(loaded.tokenizer, tmp_path / "out", INPUTS)
    saved = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert not config.keys() & {*lengths, "truncation_side", "pad_to_multiple_of", "fast_tokenizer_files"}
    assert config["model_max_length"] == 16


@pytest.mark.parametrize(
    ("family", "option", "value"),
    [
        ("bert", "do_lower_case", True),
        ("bert", "strip_accents", True),
        ("bert", "tokenize_chinese_chars", True),
        ("roberta", "add_prefix_space", False),
    ],
)
def test_option_that_contradicts_the_file_is_refused_and_an_unstated_one_is_that_of_the_file(
    family: str, option: str, value: bool, folders: Callable, tmp_path: Path
) -> None:
    base = folders(family, dict(FAMILIES)[family], tmp_path / "base")
    part, key = OPTIONS[option]
    alter(base, lambda described: described[part].update({key: not value}))
    write(base / "tokenizer_config.json", **{option: value})
    with pytest.raises(DataError, match=rf"tokenizer\.json contradicts {option} = {json.dumps(value)} in"):
        load_pretrained("mine", base)
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({name: config[name] for name in config if name != option}))
    loaded = load_pretrained("mine", base)
    expected = given(base).encode(TEXT).ids
    assert loaded.tokenizer(TEXT, verbose=False)["input_ids"] == expected
    assert len(loaded.notes) == 1


def test_added_tokens_of_other_files_are_kept_with_their_ids_or_refused(folders: Callable, tmp_path: Path) -> None:
    base = folders("bert", 0, tmp_path / "base")
    size = given(base).get_vocab_size()
    (base / "added_tokens.json").write_text(json.dumps({"boatyard": size}))
    write(base / "tokenizer_config.json", additional_special_tokens=["[X]"])
    vocab = load_pretrained("mine", base).tokenizer.get_vocab()
    assert vocab["boatyard"] == size
    assert "[X]" in vocab
    (base / "added_tokens.json").write_text(json.dumps({"boatyard": size + 7}))
    with pytest.raises(DataError, match="differ in added tokens: make them agree"):
        load_pretrained("mine", base)


def test_special_tokens_that_only_a_class_has_are_not_added(folders: Callable, tmp_path: Path) -> None:
    base = folders("camembert", 1, tmp_path / "base")
    alter(base, lambda described: described["model"]["vocab"].__setitem__(4, ["other", -1.0]))
    alter(base, lambda described: described["added_tokens"].__delitem__(4))
    alter(base, lambda config: config.pop("extra_special_tokens"), "tokenizer_config.json")
    assert "<unk>NOTUSED" in AutoTokenizer.from_pretrained(base).get_vocab()
    loaded = load_pretrained("mine", base).tokenizer
    assert loaded.get_vocab() == given(base).get_vocab()


def test_saved_config_is_one_that_transformers_4_reads(folders: Callable, tmp_path: Path) -> None:
    for family, pad in (("modernbert", 3), ("camembert", 1), ("distilbert", 0)):
        loaded = load_pretrained("mine", folders(family, pad, tmp_path / family))
        inputs = INPUTS[:2] if family == "distilbert" else INPUTS
        save_pretrained(loaded.tokenizer, tmp_path / f"{family}-out", inputs)
        config = json.loads((tmp_path / f"{family}-out" / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] != "TokenizersBackend"
        assert not isinstance(config.get("extra_special_tokens"), list)
        if family == "distilbert":
            assert config["model_input_names"] == ["input_ids", "attention_mask"]
        again = AutoTokenizer.from_pretrained(tmp_path / f"{family}-out")
        assert again.all_special_tokens == loaded.tokenizer.all_special_tokens


def test_sentencepiece_model_alone_names_the_package_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longmlm.data.pretrained.find_spec", lambda _: None)
    (tmp_path / "spiece.model").write_bytes(b"\0")
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(DataError, match=r"has spiece\.model but no tokenizer\.json: install sentencepiece"):
        load_vocabulary(str(tmp_path))
