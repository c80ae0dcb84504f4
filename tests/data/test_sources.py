"""Sources of rows: each has rows of its own, in order; a source or a group of documents may be held out as a whole."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.rows import SPLITS, RowsManifest, read_rows_manifest
from longmlm.batches.sampling import mixture_of
from longmlm.data.corpus import Document, check_splits, plan_slices, split_of, text_hash
from longmlm.data.engine import prepare_rows
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import Vocabulary
from longmlm.errors import DataError
from longmlm.folders import MANIFEST
from longmlm.needs import check_inputs
from longmlm.settings.prepare import PrepareConfig, PrepareRecipe, Source
from longmlm.settings.shipped import bundled_resolved
from tests.support.corpora import WHOLE, contents, records_of


def test_each_source_has_a_range_of_the_rows_of_both_splits(
    prepared: tuple[Path, RowsManifest],
) -> None:
    folder, manifest = prepared
    for split in SPLITS:
        rows = open_rows(folder, split)
        found = [set(rows[number].document_sources.tolist()) for number in range(len(rows))]
        counts = [*rows.rows_per_source.values()]
        assert list(rows.rows_per_source) == ["source-1", "source-2"] and min(counts) > 5
        assert found == [{0}] * counts[0] + [{1}] * counts[1]
        sizes = manifest.sources(split)
        assert [tokens for _, tokens in sizes.values()] == [*manifest.report.of(split).tokens_per_source]


def test_shards_beyond_five_digits_are_read_in_the_order_of_their_slices(
    prepared: tuple[Path, RowsManifest], tmp_path: Path
) -> None:
    folder, manifest = prepared
    texts = [open_rows(folder, "train")[number].input_ids.tolist() for number in (0, -1)]
    names = sorted(name for name in manifest.files if name.startswith("train/"))
    renamed = {name: f"train/slice-{99_999 + number}.arrow" for number, name in enumerate(names)}
    (tmp_path / "train").mkdir()
    for name, other in renamed.items():
        (tmp_path / other).hardlink_to(folder / name)
    files = {renamed[name]: manifest.files[name] for name in names}
    artifact.write(tmp_path / MANIFEST, replace(manifest, files=files))
    rows = open_rows(tmp_path, "train", verified=False)
    assert [rows[number].input_ids.tolist() for number in (0, len(rows) - 1)] == texts


def test_rows_of_an_earlier_recipe_are_read_and_only_weights_are_refused(
    prepared: tuple[Path, RowsManifest], tmp_path: Path
) -> None:
    content = json.loads((prepared[0] / MANIFEST).read_text("utf-8"))
    content["plan"]["recipe_version"] = 2
    for source in content["plan"]["sources"]:
        for name in ("name", "held_out", "split_field"):
            del source[name]
    for split in SPLITS:
        del content["report"][split]["rows_per_source"]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / MANIFEST).write_text(json.dumps(content), encoding="utf-8")
    manifest = read_rows_manifest(tmp_path / "rows")
    assert manifest.sources("train") == {} and mixture_of({}, manifest.sources("train")) is None
    assert manifest.plan.made_from.settings == prepared[1].plan.made_from.settings, "a pipeline takes them for its own"
    with pytest.raises(DataError, match="prepare new ones"):
        mixture_of({"source-1": 2.0}, manifest.sources("train"))


def lines(number: int, **fields: object) -> str:
    return json.dumps({"text": f"It rained on day {number}.", **fields}) + "\n"


def test_a_source_that_is_held_out_trains_nothing(recipe: PrepareRecipe, output: Path, vocabulary: Vocabulary) -> None:
    first, second = recipe.sources
    sources = (replace(first, name="novels"), replace(second, held_out=True))
    manifest = prepare_rows(replace(recipe, sources=sources), vocabulary, output)
    assert [*manifest.sources("train")] == ["novels"]
    assert [*manifest.sources("held_out")] == ["novels", "source-2"]
    assert manifest.report.train.tokens_per_source[1] == 0 < manifest.report.held_out.tokens_per_source[1]
    assert [source.held_out for source in read_rows_manifest(output).plan.sources] == [False, True]


def test_documents_of_a_group_stand_on_one_side_and_copies_are_counted_on_each(
    recipe: PrepareRecipe, output: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    text = "".join(lines(number % 30, book=number % 12) for number in range(240)) + lines(0) + lines(0, book=None)
    (tmp_path / "books.jsonl").write_text(text, encoding="utf-8")
    source = Source(files=(str(tmp_path / "books.jsonl"),), split_field="book")
    manifest = prepare_rows(replace(recipe, sources=(source,), slice_bytes=2_000), vocabulary, output)
    sides = Counter(split_of(text_hash(str(book)), 0.2) for book in range(12))
    assert min(sides.values()) > 1
    for split in SPLITS:
        report = manifest.report.of(split)
        assert report.documents == 20 * sides[split]
        here = [number % 30 for number in range(240) if split_of(text_hash(str(number % 12)), 0.2) == split]
        assert report.copies == len(here) - len(set(here)) > 0
    assert manifest.report.set_aside == {"no field 'book' to split by": 2}


VALUES = {"a": "a", "7": 7, "": "", "None": None}


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_the_field_is_read_from_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"texts{ending}"
    match ending:
        case ".jsonl":
            path.write_text("".join(lines(1, id=value) for value in VALUES.values()), encoding="utf-8")
        case ".csv":
            path.write_text("other,text,id\n1,It rained.,a\n2,It rained.,7\n3,It rained.,\n4,It rained.,\n")
        case _:
            pq.write_table(pa.table({"x": [1] * 4, "text": ["It rained."] * 4, "id": ["a", "7", "", None]}), path)
    records = records_of(path, split_field="id")
    assert [getattr(record, "group", None) for record in records] == ["a", "7", None, None]
    assert contents(records)[2:] == [("no field 'id' to split by",)] * 2
    if ending != ".jsonl":
        with pytest.raises(DataError, match="no column 'book': set split_field to one of .*text"):
            records_of(path, split_field="book")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(1, site=1) + lines(2, site=2), r"set split_field to \w+ of 'text', 'site'"),
        (lines(1, book=1) + lines(2, book=1), "every document has the same value in split_field"),
    ],
)
def test_a_field_that_splits_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    sources = (Source(files=(str(tmp_path / "a.jsonl"),), split_field="book"),)
    with pytest.raises(DataError, match=message):
        check_splits(PrepareRecipe(tokenizer="any", row_length=8, sources=sources), plan_slices(sources, WHOLE))


def test_a_held_out_source_alone_makes_no_training_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("broken\n", encoding="utf-8")
    held_out, broken = (Source(files=(str(tmp_path / f"{name}.jsonl"),), held_out=name == "a") for name in "ab")
    recipe = PrepareRecipe(tokenizer="any", row_length=8, sources=(held_out, broken))
    with pytest.raises(DataError, match="the sources that are not held out hold no document .1 x not a JSON object"):
        check_splits(recipe, plan_slices(recipe.sources, WHOLE))
    [document] = records_of(tmp_path / "a.jsonl")
    assert isinstance(document, Document)
    (tmp_path / "b.jsonl").write_text(lines(2), encoding="utf-8")
    check_splits(recipe, plan_slices(recipe.sources, WHOLE))  # one document trains, the other source is held out


def test_a_field_to_split_txt_files_by_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It rained.", encoding="utf-8")
    source = Source(files=(str(tmp_path / "a.txt"),), split_field="book")
    recipe = PrepareRecipe(tokenizer=bundled_resolved("bundled:roberta-mini"), row_length=8, sources=(source,))
    with pytest.raises(DataError, match="split_field = 'book' has no effect"):
        check_inputs(PrepareConfig(output=str(tmp_path / "rows"), recipe=recipe))
