"""Fast encoders: the rows of tokenizers, and its tokens for the whole corpus where an encoder turns out to differ."""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from longmlm.artifacts import artifact
from longmlm.artifacts.unfinished_rows import SliceReport
from longmlm.data import comparisons, encoding
from longmlm.data.encoding import encode, exact_encoder
from longmlm.data.engine import prepare_rows
from longmlm.data.fast_encoding import ByteLevelEncoder, fast_encoder, hostile_texts
from longmlm.data.sentences import sentence_starts
from longmlm.data.slices import SliceJob, pack_slice
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.errors import EncoderError
from longmlm.settings.prepare import PrepareRecipe
from longmlm.temporary import partial_of

pytestmark = pytest.mark.usefixtures("short_hostile_texts", "cache")
LIBRARIES = {"byte_level_trimmed": "gigatoken", "byte_level_whole": "gigatoken", "word_piece": "nanotoken"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, a folder of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def short_hostile_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "hostile_texts", lambda: [text[:1_000] for text in hostile_texts()])


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_fast_encoder_gives_the_sentences_of_tokenizers(
    kind: str, tokenizers_by_kind: dict[str, Tokenizer], english_texts: list[str], chinese_text: str
) -> None:
    tokenizer = vocabulary_of(tokenizers_by_kind[kind], kind).tokenizer
    make_encoder = exact_encoder(tokenizer)
    assert make_encoder is not None and make_encoder().library == LIBRARIES[kind]
    texts = [*english_texts[:6], chinese_text * 5, *(text[:3_000] for text in hostile_texts()), "", " ", "\n\nA b."]
    starts = [sentence_starts(text, "zh" if text.startswith(chinese_text) else "en") for text in texts]
    found = make_encoder().sentences(texts, starts)
    assert sum(sentences is not None for sentences in found) > len(texts) * 3 / 4, (
        "few documents are left to tokenizers"
    )
    for text, start, sentences in zip(texts, starts, found, strict=True):
        if sentences is not None:
            expected = [sentence.input_ids.tolist() for sentence in encode(tokenizer, text, start)]
            assert [sentence.input_ids.tolist() for sentence in sentences] == expected


@pytest.mark.parametrize("kind", LIBRARIES)
def test_rows_do_not_depend_on_the_encoder(
    kind: str, recipe: PrepareRecipe, tokenizers_by_kind: dict[str, Tokenizer], tmp_path: Path
) -> None:
    vocabulary = vocabulary_of(tokenizers_by_kind[kind], kind)
    slow = prepare_rows(recipe, vocabulary, tmp_path / "slow", encoder="tokenizers")
    fast = prepare_rows(recipe, vocabulary, tmp_path / "fast", encoder="auto")
    assert fast.files == slow.files
    assert replace(fast.report, elapsed_seconds=0.0, tokens_per_second=0.0) == replace(
        slow.report, elapsed_seconds=0.0, tokens_per_second=0.0
    )


def test_only_byte_level_bpe_and_word_piece_without_added_words_have_a_fast_encoder(
    tokenizers_by_kind: dict[str, Tokenizer],
) -> None:
    assert fast_encoder(tokenizers_by_kind["unigram"]) is None
    with_word = Tokenizer.from_str(tokenizers_by_kind["word_piece"].to_str())
    with_word.add_tokens([AddedToken("Schuldverschreibung")])
    assert fast_encoder(with_word) is None


def test_without_its_library_there_is_no_fast_encoder(
    tokenizers_by_kind: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert fast_encoder(tokenizers_by_kind["byte_level_whole"]) is not None
    assert exact_encoder(tokenizers_by_kind["byte_level_whole"]) is None


def test_long_documents_are_left_to_tokenizers(
    recipe: PrepareRecipe, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 1_000)  # so that a document is a batch
    monkeypatch.setattr(encoding, "MAX_CHARACTERS", 1_000)
    plant(monkeypatch, 0, least=1_001)
    fast = prepare_rows(recipe, vocabulary, tmp_path / "fast", encoder="auto")
    assert fast.files == prepare_rows(recipe, vocabulary, tmp_path / "slow").files


def plant(monkeypatch: pytest.MonkeyPatch, num_right: int, least: int = 0) -> None:
    """Makes the byte-level encoder wrong after its first documents of `least` characters; hostile texts stay right."""
    right, number, hostile = ByteLevelEncoder._sentences, itertools.count(), set(encoding.hostile_texts())

    def planted(self: Any, text: str, starts: np.ndarray) -> Any:
        found = right(self, text, starts)
        if found and text not in hostile and len(text) >= least and next(number) >= num_right:
            found[-1].input_ids[-1] ^= 1
        return found

    monkeypatch.setattr(ByteLevelEncoder, "_sentences", planted)


def fast_reports(folder: Path) -> list[bool]:
    return [artifact.read(SliceReport, path).is_fast for path in sorted((folder / "reports").glob("*.json"))]


def test_a_wrong_encoder_is_found_and_finished_slices_are_made_again(
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(monkeypatch, 40)
    seen: list[list[bool]] = []

    def execute(job: SliceJob, numbers: Sequence[int]) -> None:
        seen.append(fast_reports(job.folder))
        for number in numbers:
            pack_slice(job, number)

    manifest = prepare_rows(recipe, vocabulary, output, execute, "auto")
    assert len(seen) == 2 and not seen[0] and seen[1] and all(seen[1]), "slices were finished before"
    [line] = [line for line in capsys.readouterr().out.splitlines() if "tokenizers" in line]
    assert "gigatoken and tokenizers differ on " in line and "the whole corpus is encoded with tokenizers" in line
    assert manifest.files == prepare_rows(recipe, vocabulary, tmp_path / "slow").files


def test_a_run_that_resumes_after_a_difference_goes_on_with_tokenizers(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, 40)

    def execute(job: SliceJob, numbers: Sequence[int]) -> None:
        for number in numbers:
            pack_slice(job, number)
            if job.make_encoder is None:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_rows(recipe, vocabulary, output, execute, "auto")
    assert {True, False} == {*fast_reports(partial_of(output))}
    jobs: list[SliceJob] = []
    manifest = prepare_rows(recipe, vocabulary, output, _recording(jobs), "auto")
    assert [job.make_encoder for job in jobs] == [None]
    assert manifest.files == prepare_rows(recipe, vocabulary, tmp_path / "slow").files


def _recording(jobs: list[SliceJob]) -> Any:
    def execute(job: SliceJob, numbers: Sequence[int]) -> None:
        jobs.append(job)
        for number in numbers:
            pack_slice(job, number)

    return execute


class PanicException(BaseException):
    """Stands for that of pyo3, which no module exports."""


@pytest.mark.parametrize("failure", [ValueError("no such token"), PanicException("index out of bounds")])
def test_an_encoder_that_fails_is_not_used(
    failure: BaseException,
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right, number = ByteLevelEncoder.sentences, itertools.count()

    def failing(self: Any, *arguments: Any) -> Any:
        if next(number) > 1:
            raise failure
        return right(self, *arguments)

    monkeypatch.setattr(ByteLevelEncoder, "sentences", failing)
    manifest = prepare_rows(recipe, vocabulary, output, encoder="auto")
    line = f"gigatoken failed ({type(failure).__name__}: {failure}): the whole corpus is encoded with tokenizers"
    assert line in capsys.readouterr().out
    assert manifest.files == prepare_rows(recipe, vocabulary, output.with_name("slow")).files


def test_a_machine_without_the_library_makes_the_same_rows(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(job: SliceJob, numbers: Sequence[int]) -> None:
        assert job.make_encoder is not None
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "gigatoken", None)
            for number in numbers:
                pack_slice(job, number)

    manifest = prepare_rows(recipe, vocabulary, output, execute, "auto")
    assert manifest.files == prepare_rows(recipe, vocabulary, tmp_path / "slow").files


def test_an_encoder_that_differs_on_hostile_texts_is_not_used(
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = json.loads(vocabulary.tokenizer.to_str())
    content["model"]["merges"] = []
    wrong = json.dumps({**content, "added_tokens": [], "post_processor": None})
    monkeypatch.setattr(encoding, "fast_encoder", lambda _: lambda: ByteLevelEncoder(wrong))
    jobs: list[SliceJob] = []
    prepare_rows(recipe, vocabulary, output, _recording(jobs), "auto")
    assert [job.make_encoder for job in jobs] == [None]
    assert "the whole corpus is encoded with tokenizers" in capsys.readouterr().out


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the starts of the texts that tokenizers encodes; each comparison begins with the first hostile text."""
    texts: list[str] = []

    def counted(tokenizer: Tokenizer, text: str, *arguments: Any) -> Any:
        texts.append(text[:9])
        return encode(tokenizer, text, *arguments)

    monkeypatch.setattr(encoding, "encode", counted)
    return texts


@pytest.mark.parametrize("kind", LIBRARIES)
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
        (folder / "comparisons.py").write_text("# another version", encoding="utf-8")
        monkeypatch.setattr(comparisons, "__file__", str(folder / "comparisons.py"))
    else:
        changed = "tokenizers" if "tokenizers" in change else "gigatoken"
        field = "Version" if "version" in change else "RECORD"
        monkeypatch.setattr(comparisons.metadata, "distribution", lambda name: _installed(name, field, changed))
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
    tokenizer = tokenizers_by_kind["byte_level_whole"]
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
    for _ in range(2):
        compared.clear()
        assert exact_encoder(tokenizers_by_kind["byte_level_whole"]) and compared


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


def test_a_recorded_encoder_is_still_compared_on_the_corpus(
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exact_encoder(vocabulary.tokenizer)
    plant(monkeypatch, 0)
    manifest = prepare_rows(recipe, vocabulary, output, encoder="auto")
    assert "gigatoken and tokenizers differ on " in capsys.readouterr().out
    assert manifest.files == prepare_rows(recipe, vocabulary, tmp_path / "slow").files
