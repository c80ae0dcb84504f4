"""Labelled documents: labels, spans and splits are the same from every kind of file and from datasets."""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

from longmlm.downstream.artifacts import LabelledSpan
from longmlm.downstream.documents import LabelledCorpus, place_in_words, read_labelled
from longmlm.downstream.settings import LabelledData, LabelledTask, TaskKind
from longmlm.errors import DataError
from tests.downstream.labelled import Records, json_bytes, labelled, read, reasons

TEXTS = ["The lake was calm.", "湖水像一面镜子。", 'She said: "No, never".', "one\ntwo, three; four"]
SPANS = (LabelledSpan(4, 8, "PLACE"), LabelledSpan(9, 12, "STATE"))
TAGGED = {"tokens": ["Anna", "Karenina", "in", "Bern", "Rome"], "tags": ["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]}
TAGGED_SPANS = (LabelledSpan(0, 13, "PER"), LabelledSpan(17, 21, "LOC"), LabelledSpan(22, 26, "LOC"))
TAGS = {"text_field": "tokens", "tags_field": "tags"}


def csv_bytes(records: Records, spelt: Callable[[Any], str] = json.dumps) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(records[0]))
    writer.writeheader()
    for record in records:
        writer.writerow({name: item if isinstance(item, str) else spelt(item) for name, item in record.items()})
    return file.getvalue().encode()


def parquet_bytes(records: Records) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), file)
    return file.getvalue()


FORMATS: dict[str, Callable[[Records], bytes]] = {
    "jsonl": json_bytes,
    "jsonl.gz": lambda records: gzip.compress(json_bytes(records)),
    "csv": csv_bytes,
    "csv.gz": lambda records: gzip.compress(csv_bytes(records, repr)),
    "parquet": parquet_bytes,
}


def corpus_in(path: Path, kind: TaskKind = "classification", **data: Any) -> LabelledCorpus:
    return read_labelled(LabelledTask(kind=kind, data=LabelledData(files=(str(path),), **data)))


def saved(folder: Path, features: dict[str, Any], **splits: dict[str, list]) -> LabelledData:
    """Writes a dataset, and returns its `train` and, if there is one, its `held` split as labelled data."""
    datasets = {name: Dataset.from_dict(columns, Features(features)) for name, columns in splits.items()}
    DatasetDict(datasets).save_to_disk(folder / "saved")
    return LabelledData(dataset=str(folder / "saved"), test_split="held" if "held" in splits else None)


@pytest.mark.parametrize("ending", FORMATS)
def test_labels_spans_and_tags_are_the_same_from_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"documents.{ending}"
    for values, labels, is_multilabel in (
        (["b", "a", "b", "a"], [("b",), ("a",), ("b",), ("a",)], False),
        ([10, 9, 10, 9], [("10",), ("9",), ("10",), ("9",)], False),
        ([True, False, False, True], [("true",), ("false",), ("false",), ("true",)], False),
        ([["b", "a"], ["a"], [], ["c", "b"]], [("a", "b"), ("a",), (), ("b", "c")], True),
    ):
        records = [{"id": f"d{n}", "text": text, "label": values[n]} for n, text in enumerate(TEXTS)]
        path.write_bytes(FORMATS[ending](records))
        corpus = corpus_in(path)
        assert [document.text for document in corpus.documents] == TEXTS
        assert [document.id for document in corpus.documents] == ["d0", "d1", "d2", "d3"]
        found = [document.labels for document in corpus.documents]
        assert [tuple(map(str.lower, labels)) for labels in found] == labels  # Python spells True and False otherwise
        assert corpus.labels == tuple(sorted({label for labels in found for label in labels}))
        assert (corpus.target == "labels", corpus.set_aside) == (is_multilabel, ())
    spans: list[Any] = [[9, 12, "STATE"], [4, 8, "PLACE"]]
    in_lists = json.dumps(spans) if ending == "parquet" else spans  # which has no lists of mixed types
    keys = ("start", "end", "label")
    in_columns = dict(zip(keys, map(list, zip(*spans, strict=True)), strict=True))
    values = [[dict(zip(keys, span, strict=True)) for span in spans], in_lists]
    for value in [*values, in_columns] if "csv" not in ending else values:
        path.write_bytes(FORMATS[ending]([{"text": TEXTS[0], "spans": value}]))
        corpus = corpus_in(path, "labelling")
        assert (corpus.documents[0].spans, corpus.labels) == (SPANS, ("PLACE", "STATE"))
    path.write_bytes(FORMATS[ending]([TAGGED]))
    [document] = corpus_in(path, "labelling", **TAGS).documents
    assert (document.text, document.spans) == ("Anna Karenina in Bern Rome", TAGGED_SPANS)


def test_spans_may_count_words_and_do_not_end_in_white_space(tmp_path: Path) -> None:
    text = "  In Lincoln 's\tInn\n\nHall ."
    for unit, spans in (("words", [[1, 5, "FAC"], [5, 6, "O"]]), ("characters", [[4, 26, "FAC"], [26, 27, "O"]])):
        corpus = read(tmp_path, [{"text": text, "spans": spans}], "labelling", span_unit=unit)
        found = [text[span.start : span.end] for span in corpus.documents[0].spans]
        assert found == ["Lincoln 's\tInn\n\nHall", "."]


def test_a_field_says_which_split_and_which_group_a_document_is_of(tmp_path: Path) -> None:
    names = ["train", "Validation", "dev", "TEST", "train", "training", "valid", "other", None]
    records = labelled("a", "b", "a", "b", "b", "a", "a", "a", "a")
    for record, name in zip(records, names, strict=True):
        record |= {"part": name, "author": "Poe" if name == "train" else None}
    corpus = read(tmp_path, records, split_field="part", group_field="author")
    splits = [document.split for document in corpus.documents]
    assert splits == ["train", "dev", "dev", "test", "train", "train", "dev"]
    assert [document.group for document in corpus.documents] == ["Poe", None, None, None, "Poe", None, None]
    assert reasons(corpus) == ["its 'part' is neither train, dev nor test"] * 2
    data = LabelledData(files=(f"{tmp_path}/documents.jsonl",), split_field="part")
    with pytest.raises(DataError, match="dev_fraction has no effect, since the data has development documents"):
        read_labelled(LabelledTask(kind="classification", data=data, dev_fraction=0.3))


def test_files_of_their_own_are_development_and_test_documents(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):  # ids are the same in all files, and one document of each has none
        records = [{"id": n, "text": f"{name} {n}", "label": n % 2} for n in range(4)]
        (tmp_path / f"{name}.jsonl").write_bytes(json_bytes([*records, {"text": name, "label": 1}]))
    more = {f"{name}_files": (f"{tmp_path}/{name}.jsonl",) for name in ("dev", "test")}
    corpus = corpus_in(tmp_path / "train.jsonl", **more)
    assert Counter(document.split for document in corpus.documents) == {"train": 5, "dev": 5, "test": 5}
    assert all(document.text.startswith(str(document.split)) for document in corpus.documents)
    ids = [document.id for document in corpus.documents]
    assert len({*ids}) == len(ids) and ids[:4] == ["0", "1", "2", "3"]
    assert ids[4].startswith("train.jsonl:") and all(name.startswith("test.jsonl:") for name in ids[10:])
    assert corpus.set_aside == ()


def test_splits_of_a_dataset_have_the_names_of_its_classes(tmp_path: Path) -> None:
    features = {"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])}
    held = {"text": ["unseen", "not labelled"], "label": [1, -1]}
    data = saved(tmp_path, features, train={"text": TEXTS, "label": [1, 0, 1, 0]}, held=held)
    corpus = read_labelled(LabelledTask(kind="classification", data=data))
    assert [document.labels for document in corpus.documents] == [("pos",), ("neg",), ("pos",), ("neg",), ("pos",)]
    assert [document.split for document in corpus.documents] == ["train"] * 4 + ["test"]
    assert reasons(corpus) == ["no label"]
    assert corpus.set_aside[0].origin == f"{tmp_path}/saved, held:1"
    assert place_in_words(corpus.set_aside[0].origin) == f"record 1 of {tmp_path}/saved, held"


def test_classes_of_labels_spans_and_tags_have_names(tmp_path: Path) -> None:
    topics = Features({"text": Value("string"), "label": Sequence(ClassLabel(names=["law", "art"]))})
    Dataset.from_dict({"text": TEXTS[:3], "label": [[1, 0], [], [0]]}, topics).to_parquet(tmp_path / "topics.parquet")
    corpus = corpus_in(tmp_path / "topics.parquet")
    assert [document.labels for document in corpus.documents] == [("art", "law"), (), ("law",)]
    assert corpus.target == "labels"
    span = {"start": Value("int64"), "end": Value("int64"), "label": ClassLabel(names=["PER", "LOC"])}
    entities = [{"start": 0, "end": 4, "label": 0}, {"start": 8, "end": 12, "label": 1}]
    columns, features = {"text": ["Anna in Bern"], "spans": [entities]}, {"text": Value("string"), "spans": [span]}
    Dataset.from_dict(columns, Features(features)).to_parquet(tmp_path / "spans.parquet")
    [document] = corpus_in(tmp_path / "spans.parquet", "labelling").documents
    assert [span.label for span in document.spans] == ["PER", "LOC"]
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    tagged = {"tokens": [TAGGED["tokens"]], "tags": [[names.index(tag) for tag in TAGGED["tags"]]]}
    classes = {"tokens": Sequence(Value("string")), "tags": Sequence(ClassLabel(names=names))}
    saved(tmp_path, classes, train=tagged)
    data = LabelledData(dataset=f"{tmp_path}/saved", **TAGS)
    [document] = read_labelled(LabelledTask(kind="labelling", data=data)).documents
    assert document.spans == TAGGED_SPANS


def test_a_missing_group_is_no_group(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS, "label": ["a", "b"] * 2, "group": [1.0, float("nan"), float("nan"), None]})
    pq.write_table(table, tmp_path / "groups.parquet")
    corpus = corpus_in(tmp_path / "groups.parquet", group_field="group")
    assert [document.group for document in corpus.documents] == ["1", None, None, None]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["S-A", "B-A", "E-A", "U-A", "O"], ["a", "b c", "d"]),
        (["I-A", "I-A", "I-B", None, "L-B"], ["a b", "c", "e"]),
        (["O", "O", "O", "O", "B-first-name"], ["e"]),
    ],
)
def test_other_schemes_of_tags_are_read(tmp_path: Path, tags: list[str | None], spans: list[str]) -> None:
    more = {"tokens": [*"ab"], "tags": ["B-A", "B-B"]}
    document, _ = read(tmp_path, [{"tokens": [*"abcde"], "tags": tags}, more], "labelling", **TAGS).documents
    assert [document.text[span.start : span.end] for span in document.spans] == spans
