"""Files whose content is not what their names promise: each is refused or set aside with its own remedy."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from longmlm.data.corpus import check_splits, plan_slices
from longmlm.data.notes import markup_note
from longmlm.errors import DataError
from longmlm.settings.prepare import PrepareRecipe, Source
from tests.support.corpora import all_fields, contents, json_lines, records_of, texts_of

TEXTS = ["The lake was calm.", "湖水像一面镜子。", "PAR1 is a receptor.", "<p> opens a paragraph.", "%PDF", "BZh"]
LINES = json_lines(TEXTS)
OBJECTS = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
TABLE = "".join(f"{number},{text}\n" for number, text in [("id", "text"), *enumerate(TEXTS)]).encode()
ASCII = b"text,id\nThe lake was calm.,1\nIt rained.,2\n"


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), file)
    return file.getvalue()


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as written:
            written.writestr("word/document.xml", "<w:p/>")
    else:
        with tarfile.open(fileobj=file, mode="w") as written:
            written.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def arrow() -> bytes:
    file, table = io.BytesIO(), pa.table({"text": TEXTS})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


FOREIGN = {
    "UTF-16 with a mark": (LINES.decode().encode("utf-16"), "UTF-16: save it as UTF-8"),
    "UTF-16 in the other order": (b"\xfe\xff" + LINES.decode().encode("utf-16-be"), "UTF-16: save it as UTF-8"),
    "UTF-16-LE without a mark": ("Café, garçon. ".encode("utf-16-le") * 400, "UTF-16: save it as UTF-8"),
    "UTF-16-BE without a mark": (ASCII.decode().encode("utf-16-be"), "UTF-16: save it as UTF-8"),
    "UTF-32": (LINES.decode().encode("utf-32"), "UTF-32: save it as UTF-8"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\n", "a PDF file: extract its text"),
    "docx": (archive("zip"), "an office document"),
    "doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0", "an office document"),
    "RTF": (b"{\\rtf1\\ansi The lake.}", "an office document"),
    "gzip": (gzip.compress(LINES), "add .gz to its name"),
    "zstd": (zstd.compress(LINES), "add .zst to its name"),
    "bzip2": (bz2.compress(LINES), "add .bz2 to its name"),
    "xz": (lzma.compress(LINES), "add .xz to its name"),
    "tar": (archive("tar"), "an archive: unpack it"),
    "Parquet": (parquet(), "ending .parquet"),
    "Arrow": (arrow(), "an Arrow file"),
}
NO_LINES = {
    "an array": json.dumps(OBJECTS).encode(),
    "an array over lines": b"[\n" + LINES.replace(b"}\n{", b"},\n{") + b"]\n",
    "pretty-printed": "\n".join(json.dumps(item, indent=2) for item in OBJECTS).encode(),
    "pretty-printed array": json.dumps(OBJECTS, indent=1).encode(),
    "HTML": b"<!DOCTYPE html>\n<html><body>The lake.</body></html>",
    "XML": b'\xef\xbb\xbf<?xml version="1.0"?><TEI/>',
}


def refusal(path: Path) -> str:
    """Returns why a file is refused, which is the same for its text and for all of its fields."""
    with pytest.raises(DataError) as raised:
        records_of(path)
    with pytest.raises(DataError) as of_fields:
        all_fields(Source(files=(str(path),)))
    assert str(of_fields.value) == str(raised.value)
    assert "\n" not in str(raised.value) and str(raised.value).encode()
    return str(raised.value)


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_contents_are_refused_or_set_aside_by_name(tmp_path: Path, kind: str) -> None:
    content, remedy = FOREIGN[kind]
    (tmp_path / "a.txt").write_bytes(content)
    [record] = records_of(tmp_path / "a.txt")
    assert remedy in record.reason
    for name, written in {"a.jsonl.gz": gzip.compress(content), "a.csv": content}.items():
        (tmp_path / name).write_bytes(written)
        assert refusal(tmp_path / name).startswith(f"{tmp_path / name} is no ")
        assert remedy in refusal(tmp_path / name)


@pytest.mark.parametrize("kind", NO_LINES)
def test_what_is_no_json_lines_is_refused_with_its_own_remedy(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(NO_LINES[kind])
    is_json = kind not in ("HTML", "XML")
    assert ("ending .json" if is_json else "HTML or XML") in refusal(path)
    if is_json:
        assert contents(records_of(path.rename(tmp_path / "a.json"))) == TEXTS


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"id;title, subtitle;text\n1;a, b;The lake\n", "delimiter"),
        (TABLE.split(b"\n", 1)[1], "header"),
        ("编号,正文\n1,湖水\n".encode("gb18030"), "iconv -f"),
        (LINES, "no column 'text'"),
        (b"<html><body>text</body></html>", "HTML or XML"),
        (TABLE.replace(b"\n", b"\r"), "CR alone"),
        (b"id,body\n1,The lake\n", "text_field"),
    ],
)
def test_other_tables_are_refused_with_their_own_remedy(tmp_path: Path, content: bytes, remedy: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    assert remedy in refusal(tmp_path / "a.csv")


NO_DOCUMENT = {
    "unquoted.csv": (b"id,text\n1,The lake, the sea\n", "broken CSV", "delimiter"),
    "gb18030.txt": ("湖水像一面镜子。".encode("gb18030"), "bad UTF-8", "iconv -f"),
    "python.jsonl": (b"{'text': 'The lake.'}\n" * 3, "broken JSON", "one object per line"),
    "lists.jsonl": (b'"1"\n["2"]\n', "not a JSON object", "one object per line"),
    "commas.jsonl": (LINES.replace(b"\n", b",\n"), "broken JSON", "one object per line"),
    "old.jsonl": (json_lines(TEXTS, "\r"), "broken JSON", "one object per line"),
    "pdf.txt": (b"%PDF-1.4", "a PDF file", "extract its text"),
    "empty.txt": (b" \n", "empty", "text_field"),
}


@pytest.mark.parametrize("name", NO_DOCUMENT)
def test_a_corpus_without_a_document_has_the_reason_and_the_remedy(tmp_path: Path, name: str) -> None:
    content, reason, remedy = NO_DOCUMENT[name]
    (tmp_path / name).write_bytes(content)
    source = Source(files=(f"{tmp_path}/{name}",))
    recipe = PrepareRecipe(tokenizer="any", row_length=8, sources=(source,))
    with pytest.raises(DataError, match=f"{reason}.*{remedy}"):
        check_splits(recipe, plan_slices([source], 1_000))


def test_what_only_looks_foreign_is_read(tmp_path: Path) -> None:
    for number, text in enumerate([*TEXTS, "a\0b\0c", "x\0\0y", "é" + "a\0b" * 90, "[1] The lake", "{ the lake }"]):
        (tmp_path / f"{number:02}.txt").write_bytes(text.encode())
        assert texts_of(tmp_path / f"{number:02}.txt") == [text]
    (tmp_path / "first.jsonl").write_bytes(b'{"text": "cut\n' + LINES)
    assert contents(records_of(tmp_path / "first.jsonl")) == [("broken JSON",), *TEXTS]


@pytest.mark.parametrize("start", ["<!DOCTYPE html>", "\ufeff\n<HTML lang=en>", '<?xml version="1.0"?>'])
def test_texts_that_begin_with_markup_are_read_and_named(tmp_path: Path, start: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"a < b, as <html> is a tag")
    source = Source(files=(f"{tmp_path}/*.txt",))
    assert markup_note([source]) is None
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(start.encode()))
    (tmp_path / "c.txt").write_text(f"{start}\n<p>The lake.</p>", encoding="utf-8")
    source = Source(files=(f"{tmp_path}/*.txt*",))
    note = markup_note([Source(dataset="any/name", split="train"), source])
    assert note is not None and f"2 of 3 .txt files begin as HTML or XML, such as {tmp_path}/b.txt.gz: " in note
    assert len(texts_of(tmp_path / "*.txt*")) == 3


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.tab", "ending .tsv"),
        ("a.jsonl.lz4", "gzip or zstd"),
        ("a.txt.XZ", "small letters"),
        ("a.parquet.bz2", "leave Parquet files uncompressed"),
        ("a.pdf", "save its text"),
        ("a.TXT", "small letters"),
        ("a.parquet.gz", "leave Parquet files uncompressed"),
        ("a.arrow", "dataset"),
        ("a", "sources are"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_remedy(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(LINES)
    assert remedy in refusal(tmp_path / name)
