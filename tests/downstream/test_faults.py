"""Labelled documents: faulty records are set aside with position and reason; what is no task is refused in one line."""

import json
from pathlib import Path

import pytest

from longmlm.downstream.documents import read_labelled
from longmlm.downstream.settings import LabelledData, LabelledTask, TaskKind
from longmlm.errors import DataError
from tests.downstream.labelled import Records, json_bytes, labelled, read, reasons

NO_LABEL = "the label is neither a string, an integer nor true or false"
NO_TAG = "is neither O nor a prefix (B, I, E, S, L or U), a dash and a label"
NO_PARTS = "a span without start, end and label"
FAULTY_CLASSES = [
    ({"text": "x"}, "no field 'label'"),
    ({"label": "a"}, "no field 'text'"),
    ({"text": "x", "label": None}, "no label"),
    ({"text": "x", "label": " "}, "no label"),
    ({"text": "x", "label": {"a": 1}}, NO_LABEL),
    ({"text": "x", "label": 0.5}, NO_LABEL),
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
    ({"spans": [[0, 3]]}, NO_PARTS),
    ({"spans": [{"start": 0, "label": "A"}]}, NO_PARTS),
    ({"spans": [[True, 3, "A"]]}, NO_PARTS),
    ({"spans": [[0, 3, None]]}, "no label"),
]
FAULTY_TAGS = [
    ({"tokens": ["a", "b"], "tags": ["O"]}, "not as many tags as words"),
    ({"tokens": ["a"], "tags": ["PER"]}, f"the tag 'PER' {NO_TAG}"),
    ({"tokens": ["a"], "tags": [3]}, f"the tag 3 {NO_TAG}"),
    ({"tokens": ["a", " "], "tags": ["O", "O"]}, "a word that is not text"),
    ({"tokens": "a b", "tags": "O O"}, "words or tags are not a list"),
    ({"tokens": ["a"]}, "no field 'tags'"),
]
SOUND = labelled("a", "b", "a", "b")
SOUND_SPANS = [{"text": "New York", "spans": [[0, 8, "GPE"]]}, {"text": "lake", "spans": []}]
SOUND_TAGS = [{"tokens": ["Anna"], "tags": ["B-PER"]}]


def read_file(path: Path, **data: object) -> list[str]:
    """Returns why records of a file were set aside."""
    return reasons(read_labelled(LabelledTask(kind="classification", data=LabelledData(files=(str(path),), **data))))


@pytest.mark.parametrize(
    ("kind", "sound", "faulty", "data"),
    [
        ("classification", SOUND, FAULTY_CLASSES, {}),
        ("labelling", SOUND_SPANS, [({"text": "four fou"} | record, why) for record, why in FAULTY_SPANS], {}),
        ("labelling", SOUND_TAGS, FAULTY_TAGS, {"text_field": "tokens", "tags_field": "tags"}),
    ],
    ids=["classes", "spans", "tags"],
)
def test_faulty_records_are_set_aside_with_position_and_reason(
    tmp_path: Path, kind: TaskKind, sound: Records, faulty: list[tuple[dict, str]], data: dict[str, str]
) -> None:
    wrong = [record for record, _ in faulty]
    corpus = read(tmp_path, [*sound, *wrong], kind, **data)
    assert len(corpus.documents) == len(sound)
    assert reasons(corpus) == [reason for _, reason in faulty]
    content = (tmp_path / "documents.jsonl").read_bytes()
    begins = [int(item.origin.rpartition(":")[2]) for item in corpus.set_aside]
    assert [json.loads(content[begin:].splitlines()[0]) for begin in begins] == wrong


def test_records_that_cannot_be_parsed_are_set_aside(tmp_path: Path) -> None:
    path, table = tmp_path / "broken.jsonl", tmp_path / "broken.csv"
    path.write_bytes(json_bytes(SOUND) + b'{"text": \n\n[1]\n{"text": "\xff"}\n')
    assert read_file(path) == ["broken JSON", "not a JSON object", "bad UTF-8"]
    table.write_bytes(b"text;label\nx;a\ny;b\nz\nv;\xff\nw;a\nu;b\n")
    assert read_file(table, delimiter=";") == ["broken CSV", "bad UTF-8"]


def test_no_text_and_no_group_of_given_test_documents_is_trained_on(tmp_path: Path) -> None:
    rows = [
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
    records = [dict(zip(("text", "label", "split", "group"), row, strict=True)) for row in rows]
    corpus = read(tmp_path, records, split_field="split", group_field="group")
    assert [document.text for document in corpus.documents] == ["tested", "chosen", "kept", "kept too", "kept"]
    sides = (("text", "test"), ("text", "test"), ("group", "test"), ("text", "dev"))
    assert reasons(corpus) == [f"its {key} is also that of a {side} document" for key, side in sides]


OUTSIDE = [{"text": "x", "spans": [[0, 2, "A"]]}] * 2


@pytest.mark.parametrize(
    ("kind", "records", "line"),
    [
        (
            "classification",
            [{"body": "x", "topic": "a"}] * 3,
            r"no field 'text' \(3, the first at line 1 of .*'topic':",
        ),
        ("classification", labelled(None, "", None), r"no label \(3, the first at line 1 of "),
        ("classification", labelled("a", "a", "a", None), r"'a' is the only class of 3.*at line 1 of .*no label \(1, "),
        ("classification", labelled("a", "b", "c"), "3 classes in 3 training documents.*at line 1 of .*label_field"),
        ("classification", labelled(["a", "b", "c"], ["d"]), "4 classes in 2 training documents.* at line 1 of"),
        ("classification", labelled(["a", "b"]), "2 classes in 1 training document"),
        ("classification", labelled([], []), "no label or span in 2 training documents"),
        ("classification", labelled(["a"], ["a"]), "'a' is the only class of 2.*add documents of another class"),
        ("labelling", [{"text": "x", "spans": []}] * 2, "no label or span in 2 training documents.*spans_field"),
        ("labelling", OUTSIDE, r"a span outside the text \(2, the first at line 1 of .*jsonl\)$"),
    ],
)
def test_what_is_no_task_is_refused_in_one_line(tmp_path: Path, kind: TaskKind, records: Records, line: str) -> None:
    with pytest.raises(DataError, match=line) as caught:
        read(tmp_path, records, kind)
    assert "\n" not in str(caught.value)


def test_files_without_documents_are_refused(tmp_path: Path) -> None:
    contents = {
        "a.txt": (b"text", "records of JSON"),
        "a.csv": (b"body,label\nx,a\n", "'body', 'label'"),
        "none.csv": (None, "no such file"),
        "story.jsonl": (b"Once upon a time\nthere was a lake.\n", "write one object per line"),
        "empty.jsonl": (b"", "the records have no fields$"),
        "chinese.csv": (
            "text,label\n山高水长,甲\n".encode("gbk"),
            r"bad UTF-8 \(.*\); save the files as UTF-8, as `iconv",
        ),
    }
    for name, (content, message) in contents.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_file(tmp_path / name)


def test_given_splits_without_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 4 documents is a training document"):
        read(tmp_path, [record | {"split": "test"} for record in SOUND], split_field="split")
    test = tmp_path / "test.jsonl"
    test.write_bytes(json_bytes([{"text": "x"}]))
    with pytest.raises(DataError, match=r"no test document can be used; set aside: no field 'label' \(1, "):
        read(tmp_path, SOUND, test_files=(str(test),))


def test_a_group_that_is_a_list_is_set_aside_and_white_space_makes_no_other_group(tmp_path: Path) -> None:
    authors = ["A", " A", ["A"], "B", "B"]
    records = [{"text": f"{n}", "label": "ab"[n % 2], "author": author} for n, author in enumerate(authors)]
    corpus = read(tmp_path, records, group_field="author")
    assert reasons(corpus) == ["the group is neither a string, an integer nor true or false"]
    assert [document.group for document in corpus.documents] == ["A", "A", "B", "B"]


def test_several_labels_may_be_more_than_documents(tmp_path: Path) -> None:
    records = [{"text": f"{n}", "label": ["shared", f"own {n}", f"other {n}"][n % 2 :]} for n in range(6)]
    assert len(read(tmp_path, records).labels) == 13
