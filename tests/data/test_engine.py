"""Preparation of rows: nothing lost, nothing made twice, the same rows in whatever order slices are packed."""

import copy
import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import Dataset
from tokenizers import Tokenizer

from longmlm.artifacts.rows import SPLITS, RowsManifest, Split, read_rows_manifest
from longmlm.data.corpus import split_of, text_hash
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.sentences import sentence_starts
from longmlm.data.slices import SliceJob, pack_slice
from longmlm.data.vocabulary import Vocabulary
from longmlm.folders import partial_of, verify
from longmlm.settings.prepare import PrepareRecipe, Source


def shards_of(folder: Path, split: Split) -> list[Dataset]:
    return [Dataset.from_file(str(path)) for path in sorted((folder / split).glob("*.arrow"))]


def contents(folder: Path, split: Split) -> list[int]:
    """Returns the tokens of all rows without what packing has added."""
    found = []
    for row in (row for shard in shards_of(folder, split) for row in shard):
        ids, starts = row["input_ids"], row["document_starts"]
        assert (ids[0], ids[-1], starts[0]) == (0, 2, 1)
        separators = {start - 1 for start in starts[1:]}
        assert all(ids[position] == 2 for position in separators)
        found += [token for position, token in enumerate(ids[:-1]) if position and position not in separators]
    return found


def documents_of(corpus: tuple[Source, ...]) -> list[str]:
    plain = Path(corpus[0].files[0]).read_text(encoding="utf-8").splitlines()
    packed = gzip.decompress(Path(corpus[0].files[0]).with_name("b.jsonl.gz").read_bytes()).decode().splitlines()
    texts = [json.loads(line).get("text") for line in plain if line.startswith("{")]
    return [text for text in texts if text] + [json.loads(line)["body"] for line in packed if line.startswith("{")]


def as_packed(vocabulary: Vocabulary) -> Tokenizer:
    """Returns a tokenizer that takes special tokens in a text for text."""
    tokenizer = copy.deepcopy(vocabulary.tokenizer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def rows_on_disk(folder: Path) -> dict[str, dict]:
    return {name: about for name, about in verify(folder)["files"].items() if name.startswith(SPLITS)}


def test_rows_hold_exactly_the_tokens_of_the_corpus_and_none_that_is_special(
    prepared: tuple[Path, RowsManifest], corpus: tuple[Source, ...], vocabulary: Vocabulary
) -> None:
    folder, manifest = prepared
    tokenizer = as_packed(vocabulary)
    for split in SPLITS:
        texts = [text for text in documents_of(corpus) if split_of(text_hash(text), 0.2) == split]
        encodings = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        assert len(texts) > 5
        assert contents(folder, split) == [token for encoding in encodings for token in encoding.ids]
        assert not set(contents(folder, split)) & set(vocabulary.special.all), "texts spell special tokens"
        assert manifest.report.of(split).documents == len(texts)


def test_the_report_counts_what_the_rows_hold(prepared: tuple[Path, RowsManifest]) -> None:
    folder, manifest = prepared
    for split in SPLITS:
        shards = shards_of(folder, split)
        assert len(shards) > 3
        assert all(shard.features["input_ids"].feature.dtype == "uint16" and shard.cache_files for shard in shards)
        rows = [row for shard in shards for row in shard]
        report = manifest.report.of(split)
        assert report.rows == len(rows) == len(open_rows(folder, split))
        assert report.tokens == len(contents(folder, split))
        assert report.separators == sum(len(row["document_starts"]) - 1 for row in rows) > 0
        assert max(len(row["input_ids"]) for row in rows) <= 64
        assert report.fill_rate == pytest.approx(sum(len(row["input_ids"]) for row in rows) / (64 * len(rows)))
        assert open_rows(folder, split).mean_fill == report.fill_rate > 0.75
        assert {source for row in rows for source in row["document_sources"]} == {0, 1}
        assert report.documents < report.sentences < report.tokens
        assert report.copies == 0


def test_every_source_is_cut_by_the_rules_of_its_language_and_copies_are_counted(
    recipe: PrepareRecipe, output: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    texts = [f"Am {day}. Mai kam das Boot bzw. der Fischer zurück. Es war kalt." for day in range(1, 31)]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    english, german = (Source(files=(str(tmp_path / "c.jsonl"),), language=language) for language in ("en", "de"))
    manifest = prepare_rows(replace(recipe, sources=(english, german, english)), vocabulary, output)
    num_sentences = {code: sum(len(sentence_starts(text, code)) for text in texts) for code in ("en", "de")}
    assert num_sentences == {"en": 3 * 30, "de": 2 * 30}
    reports = {split: manifest.report.of(split) for split in SPLITS}
    assert sum(one.sentences for one in reports.values()) == 2 * num_sentences["en"] + num_sentences["de"]
    for split, report in reports.items():
        assert report.copies == 2 * sum(split_of(text_hash(text), 0.2) == split for text in texts) > 0


def test_the_report_says_how_long_documents_are_how_full_rows_and_what_each_source_gave(
    prepared: tuple[Path, RowsManifest], corpus: tuple[Source, ...], vocabulary: Vocabulary
) -> None:
    folder, manifest = prepared
    texts = documents_of(corpus)
    assert [text.startswith("第") for text in texts] == [False] * 36 + [True] * 30
    tokenizer = as_packed(vocabulary)
    sizes = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    for split in SPLITS:
        here = [
            (number // 36, size)
            for number, (text, size) in enumerate(zip(texts, sizes, strict=True))
            if split_of(text_hash(text), 0.2) == split
        ]
        report = manifest.report.of(split)
        assert report.tokens_per_source == tuple(
            sum(size for source, size in here if source == number) for number in (0, 1)
        )
        lengths = Counter(math.floor(math.log2(size)) for _, size in here)
        assert report.document_lengths == tuple(lengths[power] for power in range(max(lengths) + 1))
        lengths_of_rows = [len(row["input_ids"]) for shard in shards_of(folder, split) for row in shard]
        fills = [
            sum(number / 20 < length / 64 <= (number + 1) / 20 for length in lengths_of_rows) for number in range(20)
        ]
        assert report.fills == tuple(fills)
        assert sum(fills) == report.rows
        assert fills[19] > sum(fills[:10])


def test_records_that_were_set_aside_are_counted_and_written_down(
    prepared: tuple[Path, RowsManifest], corpus: tuple[Source, ...]
) -> None:
    folder, manifest = prepared
    lines = [line for path in sorted(folder.glob("set_aside/*")) for line in path.read_text("utf-8").splitlines()]
    records = [json.loads(line) for line in lines]
    assert Counter(record["reason"] for record in records) == manifest.report.set_aside
    assert manifest.report.set_aside == {"not a JSON object": 2, "empty": 1, "no field 'text'": 1}
    assert records[0]["origin"].startswith(corpus[0].files[0] + ":")
    assert [record["source"] for record in records] == [0, 0, 0, 1]


def test_the_folder_is_complete_and_holds_no_traces_of_the_work(prepared: tuple[Path, RowsManifest]) -> None:
    folder, manifest = prepared
    verify(folder)
    assert read_rows_manifest(folder) == manifest
    assert {path.name for path in folder.iterdir()} == {"train", "held_out", "set_aside", RowsManifest.FILE}
    assert not list(folder.rglob("*.partial"))
    assert not partial_of(folder).exists()


def test_slices_packed_in_any_order_give_the_same_rows(
    prepared: tuple[Path, RowsManifest], recipe: PrepareRecipe, vocabulary: Vocabulary, output: Path
) -> None:
    def backwards(job: SliceJob, numbers: Sequence[int]) -> None:
        for number in reversed(numbers):
            pack_slice(job, number)
            pack_slice(job, number)  # does nothing

    prepare_rows(recipe, vocabulary, output, backwards)
    assert rows_on_disk(output) == rows_on_disk(prepared[0])
    assert len(rows_on_disk(output)) > 6


def test_documents_packed_on_their_own_share_no_row(
    recipe: PrepareRecipe, output: Path, vocabulary: Vocabulary
) -> None:
    prepare_rows(replace(recipe, packing="doc-sentences"), vocabulary, output)
    rows = [row for split in SPLITS for shard in shards_of(output, split) for row in shard]
    assert len(rows) > 100
    assert all(len(row["document_starts"]) == 1 for row in rows)
