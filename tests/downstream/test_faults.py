"""Labelled documents: faulty records are set aside with position and reason; what is no task is refused in one line."""

import json
from pathlib import Path

import pytest

from longmlm.downstream.documents import read_labelled
from longmlm.downstream.settings import LabelledData, LabelledTask, TaskKind
from longmlm.errors import DataError
from tests.downstream.labelled import Records, json_bytes, labelled, read, reasons

FAULTY_CLASSES = [
    ({"text": "x"}, "no field 'label'"),
    ({"label": "a"}, "no field 'text'"),
    ({"text": "x", "label": None}, "no label"),
    ({"text": "x", "label": " "}, "no label"),
    ({"text": "x", "label": {"a": 1}}, "the label is neither a string, an integer nor true or false"),
    ({"text": "x", "label": 0.5}, "the label is neither a string, an integer nor true or false"),
    ({"text": "x", "label": "['a' 'b']"}, "a list without commas"),
    ({"text": " \n", "label": "a"}, "field 'text' is empty"),
    ({"text": None, "label": "a"}, "field 'text' is empty"),
    ({"text": ["x"], "label": "a"}, "field 'text' is not text"),
    ({"id": "d1", "text": "x", "label": "a"}, "its id occurred before"),
]
FAULTY_SPANS = [
    ({}, "no field 'spans'"),
    ({"spans": None}, "no spans"),
    ({"spans": "PER"}, "the spans are not a list"),
    ({"spans": [[0, 9, "A"]]}, "a span outside the text"),
    ({"spans": [[-1, 2, "A"]]}, "a span outside the text"),
    ({"spans": [[3, 3, "A"]]}, "a span outside the text"),
    ({"spans": [[0, 3, "A"], [2, 4, "B"]]}, "overlapping spans"),
    ({"spans": [[0, 8, "A"], [2, 4, "B"]]}, "overlapping spans"),
    ({"spans": [[4, 5, "A"]]}, "a span of white space"),
    ({"spans": [[0, 3]]}, "a span without start, end and label"),
    ({"spans": [{"start": 0, "label": "A"}]}, "a span without start, end and label"),
    ({"spans": [[True, 3, "A"]]}, "a span without start, end and label"),
    ({"spans": [[0, 3, None]]}, "no label"),
]
SOUND: dict[TaskKind, Records] = {
    "classification": labelled("a", "b", "a", "b"),
    "labelling": [{"text": "New York", "spans": [[0, 8, "GPE"]]}, {"text": "lake", "spans": []}],
}


@pytest.mark.parametrize(
    ("kind", "faulty"),
    [("classification", FAULTY_CLASSES), ("labelling", FAULTY_SPANS)],
)
def test_faulty_records_are_set_aside_with_position_and_reason(
    tmp_path: Path, kind: TaskKind, faulty: list[tuple[dict, str]]
) -> None:
    wrong = [({"text": "four fou"} if kind == "labelling" else {}) | record for record, _ in faulty]
    corpus = read(tmp_path, [*SOUND[kind], *wrong], kind)
    assert len(corpus.documents) == len(SOUND[kind])
    assert reasons(corpus) == [reason for _, reason in faulty]
    content = (tmp_path / "documents.jsonl").read_bytes()
    begins = [int(item.origin.rpartition(":")[2]) for item in corpus.set_aside]
    assert [json.loads(content[begin:].splitlines()[0]) for begin in begins] == wrong


def test_records_that_cannot_be_parsed_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(json_bytes(SOUND["classification"]) + b'{"text": \n\n[1]\n{"text": "\xff"}\n')
    corpus = read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(path),))))
    assert reasons(corpus) == ["broken JSON", "a JSON array, not an object", "bad UTF-8"]
    table = tmp_path / "broken.csv"
    table.write_bytes(b"text;label\nx;a\ny;b\nz\nv;\xff\nw;a\nu;b\n")
    corpus = read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(table),), delimiter=";")))
    assert [document.text for document in corpus.documents] == ["x", "y", "w", "u"]
    assert reasons(corpus) == ["broken CSV", "bad UTF-8"]


def test_no_text_and_no_group_of_given_test_documents_is_trained_on(tmp_path: Path) -> None:
    records = [
        {"text": text, "label": label, "split": split, "group": group}
        for text, label, split, group in [
            ("tested", "a", "test", "1"),
            ("tested", "a", "train", "2"),
            ("other", "b", "train", "1"),
            ("chosen", "b", "dev", "3"),
            ("chosen", "b", "train", "4"),
            ("tested", "a", "dev", "5"),
            ("kept", "a", "train", None),
            ("kept too", "b", "train", None),
            ("kept", "a", "train", "6"),
        ]
    ]
    corpus = read(tmp_path, records, split_field="split", group_field="group")
    assert [document.text for document in corpus.documents] == ["tested", "chosen", "kept", "kept too", "kept"]
    assert reasons(corpus) == [
        "its text is also that of a test document",
        "its group is also that of a test document",
        "its text is also that of a dev document",
        "its text is also that of a test document",
    ]


def test_test_documents_with_a_label_that_is_not_trained_are_set_aside_or_refused(tmp_path: Path) -> None:
    records = labelled("a", "b", "a", "b", "a", "c", "d")
    for record, split in zip(records, ["train"] * 3 + ["dev", "test", "test", "dev"], strict=True):
        record["split"] = split
    corpus = read(tmp_path, records, split_field="split")
    assert [document.labels for document in corpus.documents] == [("a",), ("b",), ("a",), ("b",), ("a",)]
    assert reasons(corpus) == ["no training document has its label"] * 2
    assert corpus.labels == ("a", "b")
    del records[4]
    with pytest.raises(
        DataError, match=r"no test document can be used.*no training document has its label \(2, the first at line "
    ):
        read(tmp_path, records, split_field="split")


def test_a_class_that_cannot_be_both_trained_and_tested_is_set_aside(tmp_path: Path) -> None:
    records = labelled("a", "b", "a", "b", "lone", "twin", "twin", "author", "author", "kept", "kept")
    records[6]["text"] = records[5]["text"]
    for n, record in enumerate(records):
        record["author"] = "Poe" if record["label"] == "author" else str(n)
    corpus = read(tmp_path, records, group_field="author")
    assert corpus.labels == ("a", "b", "kept")
    assert reasons(corpus) == ["its label has only one text or group: training and test need one each"] * 5


@pytest.mark.parametrize(
    ("kind", "records", "parts"),
    [
        (
            "classification",
            [{"body": "x", "topic": "a"}] * 3,
            ["no field 'text' (3, the first at", "the first at line 1 of", "body, topic"],
        ),
        ("classification", labelled(None, "", None), ["no label (3, the first at", "the first at line 1 of"]),
        (
            "classification",
            labelled("a", "a", "a", None),
            ["'a'", "only class of 3", "the first at line 1 of", "no label (1, "],
        ),
        (
            "classification",
            labelled("a", "b", "c"),
            ["3 classes in 3 training documents", "the first at line 1 of", "label_field"],
        ),
        (
            "classification",
            labelled(["a", "b", "c"], ["d"]),
            ["4 classes in 2 training documents", "the first at line 1 of"],
        ),
        ("classification", labelled(["a", "b"]), ["2 classes in 1 training document"]),
        ("classification", labelled([], []), ["no label or span in 2 training documents"]),
        ("classification", labelled(["a"], ["a"]), ["'a' is the only class of 2", "add documents of another class"]),
        ("labelling", [{"text": "x", "spans": []}] * 2, ["no label or span in 2 training documents", "spans_field"]),
        ("labelling", [{"text": "x", "spans": [[0, 2, "A"]]}] * 2, ["a span outside the text (2, the first at"]),
    ],
)
def test_what_is_no_task_is_refused_in_one_line(
    tmp_path: Path, kind: TaskKind, records: Records, parts: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, records, kind)
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in parts if part not in line] == []


def test_files_and_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    (tmp_path / "a.csv").write_text("body,label\nx,a\n", encoding="utf-8")
    for name, message in (("a.txt", "records of .jsonl"), ("a.csv", "body, label"), ("none.csv", "no such file")):
        with pytest.raises(DataError, match=message):
            read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(f"{tmp_path}/{name}",))))
    records = [record | {"split": "test"} for record in SOUND["classification"]]
    with pytest.raises(DataError, match="none of 4 documents is a training document"):
        read(tmp_path, records, split_field="split")
    test = tmp_path / "test.jsonl"
    test.write_bytes(json_bytes([{"text": "x"}]))
    with pytest.raises(DataError, match=r"no test document can be used; set aside: no field 'label' \(1, "):
        read(tmp_path, SOUND["classification"], test_files=(str(test),))


@pytest.mark.parametrize("content", ["Once upon a time\nthere was a lake.\n", "1\n2\n"])
def test_a_file_without_objects_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "story.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"{path} is not JSONL, one object per line$"):
        read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(path),))))


def test_an_empty_file_and_another_encoding_are_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(DataError, match=rf"{path} is empty$"):
        read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(path),))))
    path = tmp_path / "chinese.csv"
    path.write_text("text,label\n山高水长,甲\n", encoding="gbk")
    with pytest.raises(DataError, match=r"bad UTF-8 \(.*\); save the files as UTF-8$"):
        read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(path),))))


def test_fields_are_listed_only_where_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the first at line 1 of .*jsonl\)$"):
        read(tmp_path, [{"text": "x", "spans": [[0, 2, "A"]]}] * 2, "labelling")


def test_a_group_that_is_a_list_is_set_aside_and_white_space_makes_no_other_group(tmp_path: Path) -> None:
    records = [
        {"text": f"{n}", "label": "ab"[n % 2], "author": author}
        for n, author in enumerate(["A", " A", ["A"], "B", "B"])
    ]
    corpus = read(tmp_path, records, group_field="author")
    assert reasons(corpus) == ["the group is neither a string, an integer nor true or false"]
    assert [document.group for document in corpus.documents] == ["A", "A", "B", "B"]


def test_several_labels_may_be_more_than_documents(tmp_path: Path) -> None:
    records = [{"text": f"{n}", "label": ["shared", f"own {n}", f"other {n}"][n % 2 :]} for n in range(6)]
    assert len(read(tmp_path, records).labels) == 13
