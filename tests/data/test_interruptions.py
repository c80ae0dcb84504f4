"""Preparations that fail, are interrupted or find no text: what they leave, and what the next run makes of it."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset

from longmlm.artifacts.rows import SPLITS, read_rows_manifest
from longmlm.data import engine
from longmlm.data.encoding import PIECE_CHARACTERS
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.rows import open_rows
from longmlm.data.slices import SliceJob
from longmlm.data.vocabulary import Vocabulary, vocabulary_of
from longmlm.errors import DataError, FolderError
from longmlm.folders import partial_of, verify
from longmlm.processes import exclusive_lock
from longmlm.settings.prepare import PrepareRecipe, Source

KILLED_AT = 2


def recipe_in(folder: Path, texts: list[str]) -> PrepareRecipe:
    """Returns settings that give a corpus of about six slices."""
    lines = [json.dumps({"text": text[begin : begin + 900]}) for text in texts for begin in (0, 900)]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = Source(files=(str(folder / "corpus.jsonl"),))
    return PrepareRecipe(tokenizer="tiny", row_length=48, sources=(source,), held_out_fraction=0.2, slice_bytes=8_000)


@pytest.fixture
def recipe(tmp_path: Path, english_texts: list[str]) -> PrepareRecipe:
    return recipe_in(tmp_path, english_texts)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))


def killed(job: SliceJob, numbers: Sequence[int]) -> None:
    """Stands for an executor that is killed in the middle of a slice."""
    run_slices(job, numbers[:KILLED_AT])
    (job.folder / "content" / "train" / f"slice-{KILLED_AT:05d}-123.partial").write_bytes(b"half a shard")
    raise RuntimeError("killed")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary, english_texts: list[str]) -> Path:
    """Returns the rows of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    prepare_rows(recipe_in(folder, english_texts), vocabulary, folder / "rows")
    return folder / "rows"


def interrupt(recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path) -> Path:
    """Runs until the executor is killed; returns the folder that was being written."""
    with pytest.raises(RuntimeError, match="killed"):
        prepare_rows(recipe, vocabulary, output, killed)
    assert not output.exists()
    return partial_of(output)


def rows_on_disk(folder: Path) -> dict[str, dict]:
    files = verify(folder)["files"]
    return {name: about for name, about in files.items() if not name.startswith("set_aside/")}


def test_an_interrupted_run_continues_and_gives_the_rows_of_an_undisturbed_one(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, undisturbed: Path
) -> None:
    partial = interrupt(recipe, vocabulary, output)
    finished = {path.name: path.stat() for path in (partial / "content" / "train").glob("*.arrow")}
    assert sorted(finished) == ["slice-00000.arrow", "slice-00001.arrow"]
    assert list(partial.rglob("*-123.partial"))
    manifest = prepare_rows(recipe, vocabulary, output)
    expected = read_rows_manifest(undisturbed)
    assert rows_on_disk(output) == rows_on_disk(undisturbed)
    assert len(rows_on_disk(output)) > 6
    assert (manifest.report.train, manifest.report.held_out) == (expected.report.train, expected.report.held_out)
    for name, status in finished.items():
        kept = (output / "train" / name).stat()
        assert (kept.st_ino, kept.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert not partial.exists()
    assert not list(output.rglob("*.partial"))


def test_slices_whose_files_are_lost_are_packed_again(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, undisturbed: Path
) -> None:
    def killed_at_the_end(job: SliceJob, numbers: Sequence[int]) -> None:
        run_slices(job, numbers)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        prepare_rows(recipe, vocabulary, output, killed_at_the_end)
    for name in ("content/train/slice-00000.arrow", "reports/slice-00001.hashes", "reports/slice-00002.json"):
        (partial_of(output) / name).unlink()
    (partial_of(output) / "reports" / "slice-00003.hashes").write_bytes(b"")
    numbers: list[int] = []
    prepare_rows(recipe, vocabulary, output, lambda job, left: numbers.extend(left) or run_slices(job, left))
    assert numbers == [0, 1, 2, 3]
    assert rows_on_disk(output) == rows_on_disk(undisturbed)


def test_only_unfinished_slices_need_disk_space_and_a_line_says_how_many_are_finished(
    recipe: PrepareRecipe,
    vocabulary: Vocabulary,
    output: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full_disk(monkeypatch)
    with pytest.raises(DataError, match=r"0\.0 MB are free"):
        prepare_rows(recipe, vocabulary, output, killed)
    assert [path.name for path in output.parent.iterdir()] == ["corpus.jsonl"]
    monkeypatch.undo()

    def all_but_one(job: SliceJob, numbers: Sequence[int]) -> None:
        run_slices(job, numbers[:-1])
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        prepare_rows(recipe, vocabulary, output, all_but_one)
    assert "resuming" not in capsys.readouterr().out
    full_disk(monkeypatch)
    prepare_rows(recipe, vocabulary, output)
    [(packed, total)] = re.findall(
        r"^resuming: (\d+) of (\d+) slices packed before$", capsys.readouterr().out, re.MULTILINE
    )
    assert int(packed) == int(total) - 1 > 0
    assert rows_on_disk(output) == rows_on_disk(undisturbed)


def test_slices_of_other_settings_and_of_a_file_that_was_touched_are_discarded(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, undisturbed: Path
) -> None:
    partial = interrupt(replace(recipe, row_length=96), vocabulary, output)
    numbers: list[list[int]] = []

    def noted(job: SliceJob, left: Sequence[int]) -> None:
        numbers.append([*left])
        killed(job, left)

    with pytest.raises(RuntimeError, match="killed"):
        prepare_rows(recipe, vocabulary, output, noted)
    os.utime(tmp_path / "corpus.jsonl", ns=(1, 1))  # it may have been changed and restored while the run was at work
    (partial / "content" / "train" / "slice-00000.arrow").write_bytes(b"rows of other text")
    prepare_rows(recipe, vocabulary, output, lambda job, left: numbers.append([*left]) or run_slices(job, left))
    assert numbers[0] == numbers[1] == [*range(len(numbers[0]))]
    assert rows_on_disk(output) == rows_on_disk(undisturbed)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_of_the_user_with_the_name_of_unfinished_rows_stays(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, is_link: bool
) -> None:
    partial = partial_of(output)
    if is_link:
        partial.symlink_to(tmp_path / "mine")
    mine = tmp_path / "mine" if is_link else partial
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    for more in ({}, {"held_out_fraction": 0.0001}):  # and one that is refused for its corpus
        with pytest.raises((FolderError, DataError)):
            prepare_rows(replace(recipe, **more), vocabulary, output)
        assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    (mine / "thesis.txt").rename(tmp_path / "thesis.txt")
    partial.unlink() if is_link else partial.rmdir()
    prepare_rows(recipe, vocabulary, output)
    partial.mkdir()
    (tmp_path / "thesis.txt").rename(partial / "thesis.txt")
    prepare_rows(recipe, vocabulary, output)  # finished before
    assert (partial / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(("fraction", "share"), [(1e-9, "none of 48"), (1 - 1e-9, "each of 48")])
def test_a_split_without_documents_is_refused_before_the_work_with_a_fraction_that_is_enough(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, fraction: float, share: str
) -> None:
    with pytest.raises(DataError, match=f"{share} documents is .*held_out_fraction") as raised:
        prepare_rows(replace(recipe, held_out_fraction=fraction), vocabulary, output, killed)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]
    enough = float(str(raised.value).split("set it to ")[1].split()[0])
    report = prepare_rows(replace(recipe, held_out_fraction=enough), vocabulary, output).report
    assert 1 <= min(report.train.documents, report.held_out.documents) <= 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no records"),
        ("broken\n{}\n", r"1 x no field 'text', 1 x not a JSON object.*one object per line"),
        ('{"text": "It rained."}\n' * 3, "every document has the same text"),
    ],
)
def test_a_corpus_without_two_documents_is_refused_and_leaves_nothing(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, content: str, message: str
) -> None:
    corpus = output.parent / "corpus.jsonl"
    corpus.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        prepare_rows(recipe, vocabulary, output)
    assert list(output.parent.iterdir()) == [corpus]


def test_documents_that_give_no_tokens_make_no_rows_and_no_error(
    recipe: PrepareRecipe, tokenizers_by_kind: dict, output: Path, tmp_path: Path
) -> None:
    with (tmp_path / "corpus.jsonl").open("a", encoding="utf-8") as lines:
        lines.writelines("\n" + json.dumps({"text": "\u200b" * number}) for number in range(3_000, 3_010))
    report = prepare_rows(recipe, vocabulary_of(tokenizers_by_kind["word_piece"], "tiny"), output).report
    for split in SPLITS:
        rows = open_rows(output, split)
        assert len(rows) == report.of(split).rows > 0
        assert min(len(rows[row_id]) for row_id in range(len(rows))) > 2
    assert report.train.documents + report.held_out.documents == 48 + 10
    shards = [Dataset.from_file(str(path)) for path in output.glob("*/*.arrow")]
    assert not all(map(len, shards))


def test_a_split_without_tokens_is_refused(
    recipe: PrepareRecipe, tokenizers_by_kind: dict, output: Path, tmp_path: Path
) -> None:
    texts = ["\u200b" * number for number in range(1, 40)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    with pytest.raises(DataError, match="train split .* tiny"):
        prepare_rows(recipe, vocabulary_of(tokenizers_by_kind["word_piece"], "tiny"), output)
    assert not output.exists()


def test_a_document_of_megabytes_in_one_line_is_packed_completely(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path, tmp_path: Path, english_texts: list[str]
) -> None:
    long_text = " ".join(english_texts * 2)
    assert len(long_text) > 3 * PIECE_CHARACTERS
    assert "\n" not in json.dumps(long_text)
    with (tmp_path / "corpus.jsonl").open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps({"text": long_text}))
    report = prepare_rows(replace(recipe, row_length=512, slice_bytes=32_000_000), vocabulary, output).report
    ids = vocabulary.tokenizer.encode(long_text, add_special_tokens=False).ids
    rows = open_rows(output, max(SPLITS, key=lambda split: report.of(split).tokens))
    tokens = [token for row_id in range(len(rows)) for token in rows[row_id].input_ids[1:-1].tolist()]
    assert len(ids) > 150_000
    assert tokens[len(tokens) - len(ids) :] == ids


def test_rows_that_another_process_is_writing_are_left_alone(
    recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path
) -> None:
    with exclusive_lock(partial_of(output)), pytest.raises(FolderError, match="another process"):
        prepare_rows(recipe, vocabulary, output)
    assert not output.exists()
