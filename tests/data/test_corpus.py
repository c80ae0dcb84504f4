"""Documents of every kind of file, records that are set aside, and the split of a document."""

import gzip
import os
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longmlm.data.corpus import Document, SetAside, plan_slices, read_slice, split_of, text_hash
from longmlm.data.files import count_bytes, files_of
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import WHOLE, compressed, json_lines, records_of, texts_of

TEXTS = ["The lake was calm.", "湖水像一面镜子。", "Ærlig talt — 😀", "line one\nline two"]


def is_held_out(text: str, fraction: float) -> bool:
    return split_of(text_hash(text), fraction) == "held_out"


def aside(origin: str, reason: str) -> SetAside:
    return SetAside(origin=origin, reason=reason, source=0)


BROKEN = {
    b'{"text": "bad \xff byte"}': "bad UTF-8",
    b'{"text": "cut': "broken JSON",
    b"not json at all": "not a JSON object",
    b'{"text": "\\ud800"}': "half a surrogate pair",
    b'{"txt": "misnamed"}': "no field 'text'",
    b'["text"]': "not a JSON object",
    b'"text"': "not a JSON object",
    b"null": "not a JSON object",
    b'{"text": 7}': "field 'text' is not text",
    b'{"text": null}': "null",
    b'{"text": ["a", 7]}': "field 'text' is not text",
    b'{"text": [null, ""]}': "empty",
    b'{"text": ""}': "empty",
    b'{"text": " \\n\\t\\u3000 "}': "empty",
}


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_a_broken_record_is_set_aside_with_its_offset_and_reason_and_its_neighbours_survive(
    tmp_path: Path, ending: str
) -> None:
    lines = [json_lines(["first"]).rstrip(), *(line for broken in BROKEN for line in (broken, b'{"text": "next"}'))]
    content = b"\n".join(lines)
    path = tmp_path / f"mixed.jsonl{ending}"
    path.write_bytes(compressed(content, ending))
    assert count_bytes(path) == len(content)
    begins = [*accumulate((len(line) + 1 for line in lines), initial=0)][:-1]
    reasons = [reason for broken in BROKEN.values() for reason in (broken, None)]
    assert records_of(path) == [
        Document("first", f"{path}:0", 0),
        *(
            aside(f"{path}:{begin}", reason) if reason else Document("next", f"{path}:{begin}", 0)
            for begin, reason in zip(begins[1:], reasons, strict=True)
        ),
    ]


def test_a_txt_file_that_is_not_text_is_set_aside(tmp_path: Path) -> None:
    contents = {"a.txt": b"", "b.txt": b" \n", "c.txt": "日本語".encode("shift_jis"), "d.txt": b"Calm.", "e.txt": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    reasons = {"a": "empty", "b": "empty", "c": "bad UTF-8", "e": "empty"}
    expected = {name: aside(f"{tmp_path}/{name}.txt:0", reason) for name, reason in reasons.items()}
    expected["d"] = Document("Calm.", f"{tmp_path}/d.txt:0", 0)
    assert records_of(tmp_path / "*.txt") == [expected[name] for name in "abcde"]


def test_globs_name_files_in_order_and_each_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", "deep/er/d.txt", "z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    every = (f"{tmp_path}/**/*.txt",)
    assert [path.name for path in files_of(every)] == ["a.txt", "b.txt", "c.txt", "d.txt"]
    twice = (f"{tmp_path}/b.txt", f"{tmp_path}/*.txt", f"{tmp_path}/z.*")
    assert [path.name for path in files_of(twice)] == ["b.txt", "a.txt", "z.jsonl"]


def test_a_file_with_several_paths_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("Calm.", encoding="utf-8")
    (tmp_path / "x" / "b.txt").symlink_to("a.txt")
    (tmp_path / "x" / "c.txt").hardlink_to(tmp_path / "x" / "a.txt")
    (tmp_path / "x" / "d.txt").write_text("Calm.", encoding="utf-8")  # equal, but a different file
    monkeypatch.chdir(tmp_path / "x")
    paths = ("a.txt", "../x/a.txt", str(tmp_path / "x" / "a.txt"), "b.txt", "c.txt", "*.txt")
    assert files_of(paths) == [Path("a.txt"), Path("d.txt")]


def test_folders_that_link_to_each_other_are_entered_once(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for folder in (tmp_path / "in" / "deep", tmp_path / "in" / ".hidden", outside):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(str(folder), encoding="utf-8")
    for number in range(12):  # as many links as would make 12 ** 40 paths
        (tmp_path / "in" / f"loop{number}").symlink_to(".")
        (tmp_path / "in" / "deep" / f"up{number}").symlink_to("..")
    (tmp_path / "in" / "other").symlink_to(outside)
    assert files_of([f"{tmp_path}/in/**/*.txt"]) == [tmp_path / "in/deep/a.txt", tmp_path / "in/other/a.txt"]
    assert files_of([f"{tmp_path}/in/**"]) == [tmp_path / "in/deep/a.txt", tmp_path / "in/other/a.txt"]
    assert files_of([f"{tmp_path}/**/deep/**/*.txt"])[0].name == "a.txt"


def test_a_name_that_is_not_utf8_is_an_error_that_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_bytes(b"Calm.")
    for pattern in (str(path), f"{tmp_path}/*.txt", f"{path}.absent"):
        with pytest.raises(DataError, match=r"caf\\xe9\.txt") as raised:
            files_of([pattern])
        assert str(raised.value).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"])
def test_a_source_that_vanishes_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    contents = {".jsonl": json_lines(TEXTS), ".gz": gzip.compress(json_lines(TEXTS)), ".csv": b"text\ncalm\n"}
    path.write_bytes(contents.get(path.suffix, b"Calm."))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path)
    sources = [Source(files=(str(path),))]
    slices = plan_slices(sources, WHOLE)
    path.unlink()
    with pytest.raises(DataError, match=name):
        list(read_slice(slices[0], sources))


def test_a_path_that_reads_like_a_glob_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "novels [1850].txt"
    path.write_text("Calm.", encoding="utf-8")
    assert texts_of(path) == ["Calm."]


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        (["a.jsonl", "b.jsonl", "README.md"], "write {folder}/*.jsonl"),
        (["a.v2.jsonl.gz", "deep/er/b.txt", "c.parquet.gz"], "write {folder}/**/*.jsonl.gz and {folder}/**/*.txt"),
        (["state.json", "data-00000-of-00001.arrow"], "set dataset and split"),
        (["a.pdf"], "it has no .txt, .md, .jsonl, .ndjson, .json, .csv, .tsv, .parquet file"),
        ([], "it has no .txt, .md, .jsonl, .ndjson, .json, .csv, .tsv, .parquet file"),
    ],
)
def test_a_folder_is_refused_with_what_to_write(tmp_path: Path, files: list[str], remedy: str) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "Calm."}\n', encoding="utf-8")
    for pattern in (str(folder), f"{folder}/", f"{tmp_path}/t*"):
        with pytest.raises(DataError) as raised:
            files_of([pattern])
        assert str(raised.value).startswith(f"{folder} is a folder: ")
        assert remedy.format(folder=folder) in str(raised.value)
    if remedy.startswith("write"):
        globs = remedy.format(folder=folder).removeprefix("write ").split(" and ")
        assert {path.name for path in files_of(globs)} == {Path(name).name for name in files[:2]}


def test_about_the_share_asked_for_is_held_out_and_a_larger_one_keeps_it() -> None:
    texts, smaller = [f"Document number {number}." for number in range(20_000)], set[str]()
    for fraction in (0.01, 0.2, 0.5, 0.97):
        held_out = {text for text in texts if is_held_out(text, fraction)}
        share = len(held_out) / len(texts)
        assert abs(share - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / len(texts))
        assert smaller < held_out, "a larger share keeps what a smaller one held out"
        smaller = held_out


def test_exact_copies_of_a_document_share_a_split_wherever_they_are(tmp_path: Path) -> None:
    texts = [f"Document number {number}." for number in range(200)]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines(texts[::-1])))
    sides: dict[str, set[bool]] = {}
    for text in texts_of(tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"):
        sides.setdefault(text, set()).add(is_held_out(text, 0.5))
    assert all(len(side) == 1 for side in sides.values())
    assert 60 < sum(side == {True} for side in sides.values()) < 140
