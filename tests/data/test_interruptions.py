"""Runs that fail, are killed or find no text: what they leave behind, and what the next run makes of it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from datasets import Dataset

from longmlm.data import engine
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import Shard, open_rows, open_shard
from longmlm.data.vocabulary import PIECE_CHARACTERS, Vocabulary, vocabulary_of
from longmlm.errors import DataError
from longmlm.folders import partial_of, verify
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source

ROOT = Path(__file__).parents[2]
KILLED_AT = "slice-00002"


@pytest.fixture
def config(tmp_path: Path, english_texts: list[str]) -> PrepareConfig:
    """Returns settings that give a corpus of about six slices."""
    lines = [json.dumps({"text": text[begin : begin + 900]}) for text in english_texts for begin in (0, 900)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return PrepareConfig(
        output=str(tmp_path / "rows"),
        recipe=PrepareRecipe(
            tokenizer="tiny",
            row_length=48,
            sources=(Source(files=(str(tmp_path / "corpus.jsonl"),)),),
            held_out_fraction=0.2,
            slice_bytes=8_000,
        ),
    )


@contextmanager
def open_until_killed(path: Path, vocabulary_size: int) -> Iterator[Shard]:
    if path.stem == KILLED_AT:
        path.with_name(f"{KILLED_AT}-123.partial").write_bytes(b"half a shard")
        raise RuntimeError("killed")
    with open_shard(path, vocabulary_size) as shard:
        yield shard


def interrupt(config: PrepareConfig, vocabulary: Vocabulary) -> Path:
    """Runs the stage until it is killed in the middle of a slice; returns the folder that it was writing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "open_shard", open_until_killed)
        with pytest.raises(RuntimeError, match="killed"):
            prepare_rows(config, vocabulary)
    assert not Path(config.output).exists()
    return partial_of(Path(config.output))


def rows_on_disk(config: PrepareConfig) -> dict[str, dict]:
    files = verify(Path(config.output))["files"]
    return {name: about for name, about in files.items() if not name.startswith("set_aside/")}


def test_an_interrupted_run_goes_on_and_gives_the_rows_of_an_undisturbed_one(
    config: PrepareConfig, vocabulary: Vocabulary
) -> None:
    partial = interrupt(config, vocabulary)
    finished = {path.name: path.stat() for path in (partial / "whole" / "train").glob("*.arrow")}
    assert sorted(finished) == ["slice-00000.arrow", "slice-00001.arrow"]
    manifest = prepare_rows(config, vocabulary)

    undisturbed = replace(config, output=config.output + "-undisturbed")
    expected = prepare_rows(undisturbed, vocabulary)
    assert rows_on_disk(config) == rows_on_disk(undisturbed)
    assert len(rows_on_disk(config)) > 6
    for split in ("train", "held_out"):
        assert manifest["report"][split] == expected["report"][split]
    for name, status in finished.items():
        kept = (Path(config.output) / "train" / name).stat()
        assert (kept.st_ino, kept.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_a_finished_run_holds_nothing_of_what_an_interrupted_one_left(
    config: PrepareConfig, vocabulary: Vocabulary
) -> None:
    partial = interrupt(config, vocabulary)
    assert list(partial.rglob(f"{KILLED_AT}-123.partial"))
    prepare_rows(config, vocabulary)
    assert not partial.exists()
    assert not list(Path(config.output).rglob("*.partial"))


def test_an_interrupted_run_is_not_taken_up_by_one_with_other_settings(
    config: PrepareConfig, vocabulary: Vocabulary
) -> None:
    interrupt(config, vocabulary)
    longer = replace(config, row_length=96)
    prepare_rows(longer, vocabulary)
    fresh = replace(longer, output=config.output + "-fresh")
    prepare_rows(fresh, vocabulary)
    assert rows_on_disk(longer) == rows_on_disk(fresh)
    lengths = [len(open_rows(Path(config.output), "train").tokens(row_id)) for row_id in range(10)]
    assert max(lengths) > 48


def test_a_run_interrupted_after_its_last_slice_is_brought_to_its_end(
    config: PrepareConfig, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "seal", killed)
        with pytest.raises(RuntimeError, match="killed"):
            prepare_rows(config, vocabulary)
    assert not Path(config.output).exists()
    prepare_rows(config, vocabulary)
    undisturbed = replace(config, output=config.output + "-undisturbed")
    prepare_rows(undisturbed, vocabulary)
    assert rows_on_disk(config) == rows_on_disk(undisturbed)


@pytest.mark.parametrize(
    ("fraction", "remedy"),
    [(1e-9, "held_out side: raise held_out_fraction"), (1 - 1e-9, "train side: lower held_out_fraction")],
)
def test_a_side_without_documents_is_an_error_with_the_remedy_and_leaves_nothing(
    config: PrepareConfig, vocabulary: Vocabulary, tmp_path: Path, fraction: float, remedy: str
) -> None:
    with pytest.raises(DataError, match=f"none of 48 documents is on the {remedy}"):
        prepare_rows(replace(config, held_out_fraction=fraction), vocabulary)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no text"), ("broken\n{}\n", r"no document could be read \(1 x broken JSON, 1 x no field 'text'\)")],
)
def test_a_corpus_without_a_document_is_an_error_and_leaves_nothing(
    config: PrepareConfig, vocabulary: Vocabulary, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        prepare_rows(config, vocabulary)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_documents_that_give_no_tokens_make_no_rows_and_no_error(
    config: PrepareConfig, tokenizers_by_kind: dict, tmp_path: Path
) -> None:
    with (tmp_path / "corpus.jsonl").open("a", encoding="utf-8") as lines:
        lines.writelines("\n" + json.dumps({"text": "\u200b" * number}) for number in range(3_000, 3_010))
    manifest = prepare_rows(config, vocabulary_of(tokenizers_by_kind["word_piece"], "tiny"))
    for split in ("train", "held_out"):
        rows = open_rows(Path(config.output), split)
        assert len(rows) == manifest["report"][split]["rows"] > 0
        assert min(len(rows.tokens(row_id)) for row_id in range(len(rows))) > 2
    assert sum(manifest["report"][split]["documents"] for split in ("train", "held_out")) == 48 + 10
    shards = [Dataset.from_file(str(path)) for path in Path(config.output).glob("*/*.arrow")]
    assert not all(map(len, shards))


def test_a_document_of_megabytes_in_one_line_is_packed_whole(
    config: PrepareConfig, vocabulary: Vocabulary, tmp_path: Path, english_texts: list[str]
) -> None:
    long_text = " ".join(english_texts * 6)
    assert len(long_text) > 10 * PIECE_CHARACTERS
    assert "\n" not in json.dumps(long_text)
    with (tmp_path / "corpus.jsonl").open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps({"text": long_text}))
    manifest = prepare_rows(replace(config, row_length=512, slice_bytes=32_000_000), vocabulary)
    ids = vocabulary.tokenizer.encode(long_text, add_special_tokens=False).ids
    split = max(("train", "held_out"), key=lambda split: manifest["report"][split]["tokens"])
    rows = open_rows(Path(config.output), split)
    tokens = [token for row_id in range(len(rows)) for token in rows.tokens(row_id)[1:-1].tolist()]
    begin = len(tokens) - len(ids)
    assert len(ids) > 500_000
    assert tokens[begin:] == ids


def test_a_killed_worker_ends_prepare_with_the_remedy_and_finished_slices_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    command = [sys.executable, "-m", "longmlm", "prepare", "configs/prepare/demo.toml", "--output", str(output)]
    command += ["--slice-bytes", "60000", "--num-workers", "2"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    completions = partial_of(output) / "work" / "completions"
    while len(list(completions.glob("*"))) < 2:
        assert process.poll() is None, "it ended before a worker could be killed"
        time.sleep(0.02)
    servers = psutil.Process(process.pid).children()
    workers = [worker for server in servers for worker in server.children()]
    assert len(workers) == 2
    workers[0].kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: a worker was killed" in said.splitlines()[-1] and "fewer num_workers" in said.splitlines()[-1]
    finished = set(completions.glob("*"))
    assert 2 <= len(finished) < 43

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert verify(output)["report"]["train"]["documents"] > 100


def test_worker_that_is_killed_before_all_slices_are_handed_out_is_told_likewise(
    config: PrepareConfig, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(engine.ProcessPoolExecutor, "submit", broken)
    with pytest.raises(DataError, match="a worker was killed"):
        prepare_rows(replace(config, num_workers=2), vocabulary)
