"""A text is the same whichever format it is in; one that cannot be read has its own reason."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from longmlm.data import delimited
from longmlm.data.files import files_of
from longmlm.data.texts import Unreadable
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import all_fields, contents, records_of

MARK = "\ufeff"
TEXTS = {
    "plain": "The lake was calm.",
    "surrogate pairs": "😀 𝔘 \U0010ffff",
    "all planes": "".join(map(chr, [*range(0x80, 0xD800, 97), *range(0xE000, 0x110000, 997)])),
    "controls": "".join(map(chr, [*range(1, 32), 127])),
    "NUL": "a\0b",
    "CRLF": "one\r\ntwo",
    "CR": "one\rtwo",
    "LF": "\nfirst\n\n\nlast\n",
    "other line ends": "a\u2028b\u2029c\x85d\fe\vf",
    "mark": f"{MARK}lake",
    "marks": f"{MARK}{MARK}lake",
    "mark inside": f"la{MARK}ke",
    "dialogue": '"Yes", she said: "no"',
    "one quote": 'a 5" pipe',
    "quote": '"',
    "quotes": '""',
    "escapes": 'C:\\ \\n \\\\ \\" \\u0041',
    "delimiters": "a,b;c\td|e",
    "leading blanks": " \t\xa0\u3000lead",
    "trailing blanks": "trail \u3000\n\t",
    "integer": "123",
    "number": "-1.5e3",
    "date": "2020-01-01",
    "null": "null",
    "NA": "NA",
    "None": "None",
    "nan": "nan",
    "true": "true",
    "object": '{"text": "x"}',
    "array": '["a"]',
    "formula": "=1+1",
    "comment": "# no comment",
    "noncharacters": "\ufffe\uffff\ufffd",
    "combining marks": "\u0301e\u0301\u0323 नि",
    "long line": "It rained. " * 5_000,
    "Chinese": "湖水像一面镜子。" * 500,
}


def csv_bytes(end: str, quoting: int, delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=quoting, delimiter=delimiter)
    writer.writerows([["label", "text"], *(["a", text] for text in TEXTS.values())])
    return file.getvalue().encode()


def json_bytes(end: str, ensure_ascii: bool) -> bytes:
    lines = [json.dumps({"label": "a", "text": text}, ensure_ascii=ensure_ascii) + end for text in TEXTS.values()]
    return "".join(lines).encode()


def array_bytes(indent: int | None = None) -> bytes:
    objects = [{"label": "a", "text": text} for text in TEXTS.values()]
    return json.dumps(objects, ensure_ascii=False, indent=indent).encode()


def parquet_bytes() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"label": ["a"] * len(TEXTS), "text": [*TEXTS.values()]}), file, row_group_size=7)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "utf8.jsonl": lambda: json_bytes("\n", ensure_ascii=False),
    "mark.jsonl": lambda: MARK.encode() + b"\r\n" + json_bytes("\n", ensure_ascii=False),
    "ascii.jsonl": lambda: MARK.encode() + json_bytes("\r\n", ensure_ascii=True),
    "a.jsonl.gz": lambda: gzip.compress(json_bytes("\n", ensure_ascii=False)),
    "a.ndjson.bz2": lambda: bz2.compress(json_bytes("\n", ensure_ascii=False)),
    "array.json": lambda: MARK.encode() + array_bytes(),
    "indented.json.xz": lambda: lzma.compress(array_bytes(indent=2)),
    "lines.json": lambda: json_bytes("\n", ensure_ascii=True),
    "a.tsv": lambda: csv_bytes("\r\n", csv.QUOTE_MINIMAL, "\t"),
    "a.jsonl.zst": lambda: zstd.compress(json_bytes("\n", ensure_ascii=False)),
    "minimal.csv": lambda: csv_bytes("\r\n", csv.QUOTE_MINIMAL),
    "quoted.csv": lambda: MARK.encode() + csv_bytes("\n", csv.QUOTE_ALL),
    "a.csv.gz": lambda: gzip.compress(csv_bytes("\n", csv.QUOTE_NONNUMERIC)),
    "a.parquet": parquet_bytes,
}
DATASETS = ("saved", "quoted.csv", "utf8.jsonl", "array.json", "a.tsv", "a.parquet")


def source_of(name: str, folder: Path) -> dict:
    """Returns the settings of a source with all texts, written into the folder."""
    kind, _, name = name.rpartition(" of ")
    if name in (".txt", ".md"):
        for number, text in enumerate(TEXTS.values()):
            (folder / f"{number:02}{name}").write_bytes(text.encode())
        return {"files": (f"{folder}/*",)}
    if name == "saved":
        datasets.Dataset.from_dict({"label": ["a"] * len(TEXTS), "text": [*TEXTS.values()]}).save_to_disk(folder)
    else:
        (folder / name).write_bytes(FILES[name]())
    return {"dataset": str(folder)} if kind else {"files": (f"{folder}/*",)}


@pytest.fixture(params=[*FILES, ".txt", ".md", *(f"dataset of {name}" for name in DATASETS)])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "corpus").mkdir()
    return source_of(request.param, tmp_path / "corpus")


def test_a_text_is_the_same_in_every_format_alone_and_among_all_fields(source: dict) -> None:
    one = Source(**source, split="train" if "dataset" in source else None)
    found = contents(records_of(sources=[one], slice_bytes=10_000))
    assert dict(zip(TEXTS, found, strict=True)) == {name: text.lstrip(MARK) for name, text in TEXTS.items()}
    if not one.files or files_of(one.files)[0].suffix not in (".txt", ".md"):  # which has no fields
        assert dict(zip(TEXTS, [fields["text"] for fields in all_fields(one)], strict=True)) == TEXTS


def test_a_long_field_of_a_csv_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert delimited.FIELD_CHARACTERS > 100_000_000
    monkeypatch.setattr(delimited, "FIELD_CHARACTERS", 1_000)
    path, text = tmp_path / "long.csv", "湖水, \n" * 200
    path.write_text(f'text\n"{text}"\n"{text}"\n', encoding="utf-8")
    assert contents(records_of(path)) == [text, text]
    path.write_text(f'text\n"{text}"\n"{text * 2}"\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 203 .*field limit"):
        records_of(path)


VALUES = {  # of a text, and the text or the reason why there is none
    b'"a\tb\0c"': "a\tb\0c",
    b'"first", "text": "last"': "last",
    b'"a", "other": [NaN, -Infinity, 1e999]': "a",
    rb'"\ud83d"': "half a surrogate pair",
    rb'"a", "other": "\ude00\ud83d"': "half a surrogate pair",
    b'"caf\xe9"': "bad UTF-8",
    b'"\xed\xa0\xbd"': "bad UTF-8",
    rb'"\x41"': "broken JSON",
    b"NaN": "field 'text' is not text",
    b'"a", "other": 007': "broken JSON",
    b'"a", "other": %b' % (b"9" * 5_000): "broken JSON",
    b'"a", "other": %b' % (b'{"a":[' * 2_500 + b"]}" * 2_500): "broken JSON",
    b'"open': "broken JSON",
    b'"a"} {"text": "b"': "broken JSON",
}


def test_a_json_line_is_read_or_set_aside_with_the_reason(tmp_path: Path) -> None:
    lines = [b'{"n": NaN, "text": %b}\n' % value for value in VALUES]
    (tmp_path / "texts.jsonl").write_bytes(b"".join(lines))
    found = contents(records_of(tmp_path / "*"))
    assert [one[0] if isinstance(one, tuple) else one for one in found] == [*VALUES.values()]


SOUND = "The lake was calm."


def test_what_is_in_another_column_does_not_cost_a_labelled_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f"text,label,other\n{SOUND},a,".encode() + b"caf\xe9\n")
    raw = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    late = pa.array([2**50], pa.timestamp("s"))
    table = pa.Table.from_arrays(
        [pa.array([SOUND]), pa.array(["a"]), raw, raw, late], ["text", "label", "other", "other", "when"]
    )
    pq.write_table(table, tmp_path / "b.parquet")
    found = all_fields(Source(files=(f"{tmp_path}/*",)))
    assert [(fields["text"], fields["label"]) for fields in found] == [(SOUND, "a")] * 2
    assert all(isinstance(fields["other"], Unreadable) for fields in found)
