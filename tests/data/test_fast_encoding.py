"""Fast encoders: the rows of tokenizers, and its tokens for the whole corpus where an encoder turns out to differ."""

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from longmlm.artifacts import artifact
from longmlm.artifacts.unfinished_rows import SliceReport
from longmlm.data import encoding
from longmlm.data.encoding import encode, exact_encoder
from longmlm.data.engine import prepare_rows
from longmlm.data.fast_encoding import ByteLevelEncoder, fast_encoder, hostile_texts
from longmlm.data.sentences import sentence_starts
from longmlm.data.slices import SliceJob, pack_slice
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.settings.prepare import PrepareRecipe
from longmlm.temporary import partial_of

pytestmark = pytest.mark.usefixtures("short_hostile_texts", "cache")
LIBRARIES = {"byte_level_trimmed": "gigatoken", "byte_level_whole": "gigatoken", "word_piece": "nanotoken"}


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
