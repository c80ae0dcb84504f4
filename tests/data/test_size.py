"""The size of a corpus before it is packed, compared with its rows."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.data.corpus import plan_slices, sample, slice_bytes
from longmlm.data.engine import prepare_rows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary
from longmlm.errors import DataError
from longmlm.planning import size
from longmlm.planning.size import corpus_size, estimated_rows, rows_size, sampled_rows
from longmlm.settings.prepare import PrepareRecipe, Source
from longmlm.settings.shipped import PACKAGE

TOKENIZER = PACKAGE / "bundled" / "roberta-mini"
TEXT = PACKAGE / "bundled" / "text" / "demo.jsonl"


@pytest.mark.parametrize("row_length", [128, 1536])
def test_estimated_rows_are_near_those_that_are_packed(row_length, tmp_path):
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(TEXT.read_bytes().splitlines(keepends=True)[::3]))
    sources = (Source(files=(str(part),)),)
    recipe = PrepareRecipe(tokenizer=str(TOKENIZER), row_length=row_length, sources=sources, held_out_fraction=0.3)
    corpus = corpus_size(recipe.sources)
    assert corpus.num_files == 1 and corpus.num_bytes == part.stat().st_size
    packed = rows_size(prepare_rows(recipe, load_vocabulary(str(TOKENIZER)), tmp_path / "rows"))
    assert packed.is_exact
    assert corpus.num_tokens == pytest.approx(packed.num_tokens, rel=0.15)
    estimated = estimated_rows([packed.num_tokens], recipe)
    assert not estimated.is_exact
    assert estimated.mean_fill == pytest.approx(packed.mean_fill, abs=0.03)
    packed_rows, rows = (size.train_rows + size.held_out_rows for size in (packed, estimated))
    assert rows == pytest.approx(packed_rows, rel=0.05)


def in_format(kind: str, texts: list[str], folder: Path) -> str:
    """Writes the texts with other fields beside them; returns the path or pattern."""
    path = folder / f"corpus.{kind}"
    lines = [{"id": number, "other": "x" * (number % 50), "text": text} for number, text in enumerate(texts)]
    match kind:
        case "jsonl" | "jsonl.gz":
            content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(content) if kind == "jsonl.gz" else content)
        case "json":
            path.write_text(json.dumps(lines, indent=1, ensure_ascii=False), encoding="utf-8")
        case "csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(lines[0]))
                table.writeheader()
                table.writerows(lines)
        case "parquet":
            pq.write_table(pa.Table.from_pylist(lines), path, row_group_size=20)
        case "txt":
            for number, text in enumerate(texts):
                (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
            return str(folder / "*.txt")
    return str(path)


KINDS = ("jsonl", "jsonl.gz", "json", "csv", "parquet", "txt")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(TOKENIZER))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """English, then texts of which a byte gives twice as many tokens and which are no sentences."""
    prose = [json.loads(line)["text"] for line in TEXT.read_text(encoding="utf-8").splitlines()[::8]]
    return [*prose, *(text[:3000:2].replace(" ", "") for text in prose)]


def recipe_of(files: str, **more: Any) -> PrepareRecipe:
    settings = {"tokenizer": str(TOKENIZER), "row_length": 128, "held_out_fraction": 0.3, **more}
    return PrepareRecipe(sources=(Source(files=(files,)),), **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_a_small_corpus_are_counted(kind, texts, vocabulary, tmp_path):
    recipe = recipe_of(in_format(kind, texts[-30:], tmp_path), slice_bytes=30_000, packing="doc-sentences")
    sampled = sampled_rows(recipe, plan_slices(recipe.sources, recipe.slice_bytes), vocabulary)
    packed = rows_size(prepare_rows(recipe, vocabulary, tmp_path / "rows"))
    assert sampled == replace(packed, is_exact=False, mean_fill=sampled.mean_fill)
    assert sampled.mean_fill == pytest.approx(packed.mean_fill, abs=0.03)
    assert packed.train_rows > packed.held_out_rows > 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_a_large_corpus_are_estimated_from_all_over_it(kind, texts, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(size, "SAMPLED_BYTES", 80_000)
    files = in_format(kind, texts, tmp_path)
    recipe = recipe_of(files, slice_bytes=1_000_000 if kind in ("jsonl", "jsonl.gz", "parquet") else 20_000)
    slices = plan_slices(recipe.sources, recipe.slice_bytes)
    [documents], _ = sample(slices, recipe.sources, size.SAMPLED_BYTES)
    assert 40_000 < sum(len(document.text) for document in documents) < 85_000
    sampled = sampled_rows(recipe, slices, vocabulary)
    packed = rows_size(prepare_rows(recipe, vocabulary, tmp_path / "rows"))
    assert sum(map(slice_bytes, slices)) > 200_000
    if kind == "jsonl.gz":  # read from its beginning only
        assert 0.5 * packed.num_tokens < sampled.num_tokens < packed.num_tokens
        return
    assert sampled.num_tokens == pytest.approx(packed.num_tokens, rel=0.15)
    assert sampled.train_rows + sampled.held_out_rows == pytest.approx(
        packed.train_rows + packed.held_out_rows, rel=0.15
    )
    assert sampled.held_out_rows / (sampled.train_rows + sampled.held_out_rows) == pytest.approx(0.3, abs=0.01)


def test_each_source_is_estimated_by_itself(texts, vocabulary, tmp_path, monkeypatch):
    names, sources = ("prose", "rest", "tested"), []
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        files = in_format("jsonl", texts[number * len(texts) // 3 : (number + 1) * len(texts) // 3], tmp_path / name)
        sources.append(Source(files=(files,), name=name, held_out=name == "tested"))
    recipe = replace(recipe_of(files), sources=tuple(sources))
    manifest = prepare_rows(recipe, vocabulary, tmp_path / "rows")
    slices = plan_slices(recipe.sources, recipe.slice_bytes)
    counted = sampled_rows(recipe, slices, vocabulary)
    assert counted.sources == manifest.sources("train") and [*counted.sources] == ["prose", "rest"]
    assert counted.held_out_rows == manifest.report.held_out.rows
    monkeypatch.setattr(size, "SAMPLED_BYTES", 120_000)
    sampled = sampled_rows(recipe, slices, vocabulary)
    splits = manifest.report.train, manifest.report.held_out
    for number, name in enumerate(counted.sources):
        num_rows, num_tokens = (
            0.7 * sum(getattr(split, key)[number] for split in splits)
            for key in ("rows_per_source", "tokens_per_source")
        )
        assert sampled.sources[name] == (pytest.approx(num_rows, rel=0.15), pytest.approx(num_tokens, rel=0.15))
    assert sampled.num_tokens == pytest.approx(counted.num_tokens, rel=0.15)


def test_compressed_files_count_as_their_text(tmp_path):
    text = TEXT.read_bytes()
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(text))
    plain, compressed = (
        corpus_size((Source(files=(str(path),)),)).num_tokens for path in (TEXT, tmp_path / "text.jsonl.gz")
    )
    assert compressed == pytest.approx(plain, rel=0.3)


def test_a_dataset_on_a_hub_is_named_and_missing_files_are_refused(tmp_path):
    hub = Source(dataset="someone/books", split="train")
    size = corpus_size((Source(files=(str(TEXT),)), hub))
    assert size.num_files == 1 and size.not_counted == ("someone/books",)
    with pytest.raises(DataError, match="no such file"):
        corpus_size((Source(files=(str(tmp_path / "*.jsonl"),)),))
    with pytest.raises(DataError, match="such as 'en'"):
        corpus_size((Source(files=(str(TEXT),), language="english"),))
