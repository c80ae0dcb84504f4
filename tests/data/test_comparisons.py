"""Comparisons of fast encoders with tokenizers on hostile texts: made once, and again after any change."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from longmlm.data import encoding, fast_encoding
from longmlm.data.encoding import encode, exact_encoder
from longmlm.data.fast_encoding import ByteLevelEncoder, hostile_texts
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.errors import EncoderError

pytestmark = pytest.mark.usefixtures("short_hostile_texts", "cache")
KINDS = ("byte_level_trimmed", "word_piece")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the starts of the texts that tokenizers encodes; each comparison begins with the first hostile text."""
    texts: list[str] = []

    def counted(tokenizer: Tokenizer, text: str, *arguments: Any) -> Any:
        texts.append(text[:9])
        return encode(tokenizer, text, *arguments)

    monkeypatch.setattr(encoding, "encode", counted)
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_comparison_is_made_once(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer], cache: Path, compared: list[str]
) -> None:
    tokenizer = vocabulary_of(tokenizers_by_kind[kind], kind).tokenizer
    make_encoder = exact_encoder(tokenizer)
    assert make_encoder is not None and len(compared) == len(hostile_texts())
    again = exact_encoder(Tokenizer.from_str(tokenizer.to_str()))
    assert again is not None and (again.func, again.args) == (make_encoder.func, make_encoder.args)
    assert len(compared) == len(hostile_texts())
    assert [path.parent for path in cache.rglob("*") if path.is_file()] == [cache / "longmlm" / "encoders"]


CHANGES = ["definition", "texts", "version of tokenizers", "build of gigatoken", "code of longmlm"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_comparison_is_made_again_after_a_change(
    change: str,
    tokenizers_by_kind: dict[str, Tokenizer],
    cache: Path,
    compared: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["byte_level_whole"].to_str())
    assert exact_encoder(tokenizer) and compared
    compared.clear()
    if change == "definition":
        tokenizer.add_special_tokens(["<more>"])
    elif change == "texts":
        monkeypatch.setattr(encoding, "hostile_texts", lambda: ["Another text."])
    elif change == "code of longmlm":
        folder = tmp_path / "longmlm" / "data"
        folder.mkdir(parents=True)
        (folder / "fast_encoding.py").write_text("# another version", encoding="utf-8")
        monkeypatch.setattr(fast_encoding, "__file__", str(folder / "fast_encoding.py"))
    else:
        changed = "tokenizers" if "tokenizers" in change else "gigatoken"
        field = "Version" if "version" in change else "RECORD"
        monkeypatch.setattr(fast_encoding.metadata, "distribution", lambda name: _installed(name, field, changed))
    assert exact_encoder(tokenizer) and compared


class _Changed(metadata.PathDistribution):
    """An installed library with another version or other files."""

    field: str

    @property
    def version(self) -> str:
        return super().version + "9" * (self.field == "Version")

    def read_text(self, filename: Any) -> str | None:
        return f"{super().read_text(filename)}{'x' * (filename == self.field)}"


def _installed(name: str, field: str, changed: str) -> metadata.Distribution:
    found: Any = metadata.Distribution.from_name(name)
    if name == changed:
        found = _Changed(found._path)
        found.field = field
    return found


def _damaged(record: Path) -> None:
    record.write_bytes(b"\xff" + record.name.encode())


def _cut(record: Path) -> None:
    record.write_text(record.name[:30], encoding="utf-8")


def _replaced_by_a_folder(record: Path) -> None:
    record.unlink()
    record.mkdir()


@pytest.mark.parametrize("damage", [_damaged, _cut, _replaced_by_a_folder])
def test_a_damaged_record_of_a_comparison_does_not_count(
    damage: Callable[[Path], None], tokenizers_by_kind: dict[str, Tokenizer], cache: Path, compared: list[str]
) -> None:
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["byte_level_whole"].to_str())
    assert exact_encoder(tokenizer)
    [record] = (cache / "longmlm" / "encoders").iterdir()
    damage(record)
    compared.clear()
    assert exact_encoder(tokenizer) and compared
    assert [path.name for path in record.parent.iterdir()] == [record.name], "nothing is left beside it"


@pytest.mark.parametrize("place", ["file", "no home"])
def test_without_a_cache_the_comparison_is_made_each_time(
    place: str, tokenizers_by_kind: dict[str, Tokenizer], cache: Path, compared: list[str], monkeypatch: Any
) -> None:
    if place == "file":
        cache.write_text("not a folder", encoding="utf-8")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "expanduser", _without_home)
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["byte_level_whole"].to_str())
    for _ in range(2):
        compared.clear()
        assert exact_encoder(tokenizer) and compared


def _without_home(path: Path) -> Path:
    raise RuntimeError(f"Could not determine home directory of {path}.")


def test_a_comparison_that_finds_a_difference_is_not_recorded(
    vocabulary: Vocabulary, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ByteLevelEncoder._sentences
    monkeypatch.setattr(ByteLevelEncoder, "_sentences", lambda self, text, starts: right(self, text + "x", starts))
    for _ in range(2):
        with pytest.raises(EncoderError, match="gigatoken and tokenizers differ"):
            exact_encoder(vocabulary.tokenizer)
    assert not cache.exists()
