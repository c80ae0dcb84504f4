"""Fields with the text: inside others, several of one record, and those that no record has."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.data.corpus import check_fields, check_splits, plan_slices
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.corpora import contents, records_of

RECORD = {
    "article": {"title": "The lake", "body": {"en": "It was calm."}, "year": 1850},
    "article.title": "whole name",
    "a.b": {"c.d": "in names with dots"},
    "turns": [{"text": "Yes."}, {"text": None}, {"text": "No."}],
    "mixed": ["a", 1],
    "empty": " ",
    "null": None,
}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("article.body.en", "It was calm."),
        ("article.title", "whole name"),
        ("a.b.c.d", "in names with dots"),
        ("turns.text", "Yes.\n\nNo."),
        ("null.text", ("null",)),
        ("mixed", ("field 'mixed' is not text",)),
        ("article", ("field 'article' is not text",)),
        ("article.year", ("field 'article.year' is not text",)),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_field_inside_others_is_named_with_dots(
    tmp_path: Path, field: str, expected: str | tuple[str], name: str
) -> None:
    (tmp_path / name).write_text(json.dumps(RECORD))
    assert contents(records_of(tmp_path / name, text_field=field)) == [expected]


def written(path: Path, records: list[dict[str, str | None]]) -> Source:
    """Returns a source with the records as its only file."""
    match path.suffix:
        case ".jsonl" | ".json":
            path.write_text("\n".join(map(json.dumps, records)))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
        case ending:
            delimiter = {".csv": ",", ".tsv": "\t"}[ending]
            lines = [[*records[0]], *([text or "" for text in record.values()] for record in records)]
            path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return Source(files=(str(path),), text_fields=("title", "body"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet"])
def test_the_texts_of_several_fields_are_joined_without_those_that_are_absent(tmp_path: Path, name: str) -> None:
    pairs = [("Title", "Body"), ("Title", ""), (None, "Body"), (None, None)]
    source = written(tmp_path / name, [{"title": title, "body": body} for title, body in pairs])
    *texts, aside = contents(records_of(sources=[source]))
    assert texts == ["Title\n\nBody", "Title", "Body"]
    assert aside in [("null",), ("empty",)]
    turned = Source(files=source.files, text_fields=("body", "title"))
    assert contents(records_of(sources=[turned]))[0] == "Body\n\nTitle"


def test_a_field_that_is_there_and_cannot_be_read_leaves_its_record_without_text(tmp_path: Path) -> None:
    lines = [b'{"title": "caf\xe9", "body": "a"}', b'{"title": 7, "body": "a"}', b'{"body": "a"}', b'{"t": 1}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    source = Source(files=(str(tmp_path / "a.jsonl"),), text_fields=("title", "body"))
    found = contents(records_of(sources=[source]))
    assert found == [("bad UTF-8",), ("field 'title' is not text",), "a", ("no field 'title'",)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_a_field_that_no_record_has_is_named_with_the_fields_that_there_are(tmp_path: Path, name: str) -> None:
    written(tmp_path / name, [{"title": "a", "body": "c"}, {"title": "b", "body": "d"}])
    good = Source(files=(str(tmp_path / name),), text_field="body")
    bad = Source(files=(str(tmp_path / name),), text_fields=("titel", "body"))
    recipe = PrepareRecipe(tokenizer="any", row_length=8, sources=(good, bad))
    with pytest.raises(DataError, match=r"'titel'.*title.*body"):
        check_splits(recipe, plan_slices(recipe.sources, 1_000))


def test_a_field_that_few_records_have_is_accepted(tmp_path: Path) -> None:
    lines = [{"body": "a"}] * 500 + [{"title": "b"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = Source(files=(str(tmp_path / "a.jsonl"),), text_fields=("title", "body"))
    check_fields(source, source.files)
