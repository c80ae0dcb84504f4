"""Columns of Parquet, Arrow and CSV files: each type is read or refused, and a name must be that of one column."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from longmlm.data.corpus import plan_slices
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import all_fields, contents, records_of

TEXTS = ["The lake was calm.", "湖水像一面镜子。"]
TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]
LIST_TYPES = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
OTHER_COLUMNS = {
    "binary": pa.array([b"text"]),
    "fixed": pa.array([b"text"], pa.binary(4)),
    "int32": pa.array([[1]], pa.list_(pa.int32())),
    "int64": pa.array([1]),
    "double": pa.array([1.5]),
    "bool": pa.array([True]),
    "null": pa.nulls(1),
    "struct": pa.array([{"text": "text"}]),
    "map": pa.array([[("text", "text")]], pa.map_(pa.string(), pa.string())),
    "timestamp": pa.array([0], pa.timestamp("ms")),
    "arrow.json": pa.array(['"text"'], pa.json_()),
}


def written(folder: Path, kind: str, table: pa.Table) -> dict[str, object]:
    """Returns the settings of a source with the table."""
    match kind:
        case "parquet":
            pq.write_table(table, folder / "table.parquet")
        case "csv":
            lines = [table.schema.names, *zip(*(column.to_pylist() for column in table.columns), strict=True)]
            (folder / "table.csv").write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
        case _:
            Dataset(table).save_to_disk(folder / "saved")
            return {"dataset": str(folder / "saved")}
    return {"files": (f"{folder}/table.{kind}",)}


def texts_of(settings: dict, text_field: str = "text") -> list[str]:
    sources = [Source(**settings, split="train" if "dataset" in settings else None, text_field=text_field)]
    return contents(records_of(sources=sources, slice_bytes=1))


def fields_with(settings: dict) -> list:
    return all_fields(Source(**settings, split="train" if "dataset" in settings else None))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_every_type_of_text_is_read_and_every_other_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    for number, text_type in enumerate(TEXT_TYPES):
        (tmp_path / str(number)).mkdir()
        table = pa.table({"text": pa.array(TEXTS).cast(text_type), "label": ["a", "b"]})
        settings = written(tmp_path / str(number), kind, table)
        assert texts_of(settings) == [fields["text"] for fields in fields_with(settings)] == TEXTS
    unknown_to_datasets = {"map", "arrow.json"} if kind == "arrow" else set()
    for name in OTHER_COLUMNS.keys() - unknown_to_datasets:
        (tmp_path / name).mkdir()
        settings = written(tmp_path / name, kind, pa.table({"text": OTHER_COLUMNS[name], "label": ["a"]}))
        for read in (texts_of, fields_with):
            with pytest.raises(DataError, match=f"column 'text' holds .*{name}.*text_field"):
                read(settings)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_name_that_two_columns_have_is_refused_for_texts_and_set_aside_for_other_fields(
    tmp_path: Path, kind: str
) -> None:
    columns = [pa.array(TEXTS), pa.array(["a", "b"]), pa.array(["c", "d"])]
    settings = written(tmp_path, kind, pa.Table.from_arrays(columns, ["text", "label", "text"]))
    for read in (texts_of, fields_with):
        with pytest.raises(DataError, match=r"table\.\w+ .*'text'.*rename"):
            read(settings)
    assert texts_of(settings, "label") == ["a", "b"]
    written(tmp_path, kind, pa.Table.from_arrays(columns, ["text", "label", "label"]))
    assert texts_of(settings) == TEXTS
    assert [fields["label"].reason for fields in fields_with(settings)] == ["several columns are named 'label'"] * 2


def test_a_name_with_a_dot_is_that_of_a_column_and_not_of_a_field_inside_one(tmp_path: Path) -> None:
    nested = pa.array([{"text": "inner", "n": 1}] * 2)
    settings = written(tmp_path, "parquet", pa.table({"meta": nested, "meta.text": TEXTS, "text.x": TEXTS[::-1]}))
    assert texts_of(settings, "meta.text") == TEXTS
    assert texts_of(settings, "text.x") == TEXTS[::-1]
    written(tmp_path, "parquet", pa.table({"meta": nested, "body": TEXTS}))
    assert texts_of(settings, "meta.text") == ["inner"] * 2
    for absent in ("meta.body", "body.text", "meta.text.x", "text"):
        with pytest.raises(
            DataError, match=re.escape(f"no column '{absent}': set text_field to one of 'meta', 'body'")
        ):
            texts_of(settings, absent)
    with pytest.raises(DataError, match=r"'meta.n' holds int64"):
        texts_of(settings, "meta.n")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_the_texts_of_a_list_are_joined_whatever_its_type_and_depth(tmp_path: Path, kind: str) -> None:
    parts = [["The lake", None, "", "was calm."], [], None, ["湖水"]]
    for number, list_type in enumerate(LIST_TYPES if kind == "parquet" else LIST_TYPES[:2]):  # `datasets` has no views
        (tmp_path / str(number)).mkdir()
        turns = pa.array(parts, list_type(TEXT_TYPES[number]))
        nested = pa.array([{"turns": [{"text": one, "n": 1} for one in some or ()]} for some in parts])
        settings = written(tmp_path / str(number), kind, pa.table({"turns": turns, "talk": nested}))
        expected = ["The lake\n\nwas calm.", ("empty",), ("null",), "湖水"]
        assert texts_of(settings, "turns") == expected
        assert texts_of(settings, "talk.turns.text") == [one if one != ("null",) else ("empty",) for one in expected]


def test_of_a_nested_column_only_the_named_part_is_read(tmp_path: Path) -> None:
    articles = pa.array([{"body": text, "raw": "x" * 100_000} for text in TEXTS])
    settings = written(tmp_path, "parquet", pa.table({"article": articles}))
    (spans,) = plan_slices([Source(**settings, text_field="article.body")], 1 << 40)
    assert texts_of(settings, "article.body") == TEXTS
    assert sum(span.size for span in spans) < 1_000


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("text_type", [pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string())])
def test_a_dictionary_holds_a_repeated_text_once_and_slices_count_it_each_time(
    tmp_path: Path, kind: str, text_type: pa.DataType
) -> None:
    texts = [f"{number % 7}. {TEXTS[0] * 500}" for number in range(400)]
    column = pa.array([[text] for text in texts] if pa.types.is_list(text_type) else texts).cast(text_type)
    settings = written(tmp_path, kind, pa.table({"text": column}))
    sources = [Source(**settings, split="train" if "dataset" in settings else None)]
    sizes = [sum(span.size for span in spans) for spans in plan_slices(sources, 1_000_000)]
    assert sum(sizes) == pytest.approx(sum(map(len, texts)), rel=0.02)
    assert max(sizes) == pytest.approx(1_000_000, rel=0.02)


def test_repeated_texts_at_the_start_do_not_stand_for_the_rest(tmp_path: Path) -> None:
    texts = ["long " * 4_000] * 64 + [f"short {number}" for number in range(20_000)]
    settings = written(tmp_path, "parquet", pa.table({"text": texts}))
    sizes = [span.size for spans in plan_slices([Source(**settings)], 1_000_000) for span in spans]
    assert sum(sizes) < 2 * sum(map(len, texts))


def test_the_size_of_texts_that_do_not_repeat_is_that_in_the_file(tmp_path: Path) -> None:
    texts = [f"{number}. {TEXTS[0] * (40 if number < 40 else 1)}" for number in range(2_000)]
    settings = written(tmp_path, "parquet", pa.table({"text": texts}))
    column = pq.ParquetFile(tmp_path / "table.parquet").metadata.row_group(0).column(0)
    (spans,) = plan_slices([Source(**settings)], 1 << 30)
    assert [span.size for span in spans] == [column.total_uncompressed_size]
    assert column.total_uncompressed_size == pytest.approx(sum(map(len, texts)), rel=0.2)
