"""A text is the same whichever format it is in; what is wrong with other fields of its record does not cost it."""

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
    assert min(delimited.FIELD_CHARACTERS, delimited.LOOK_AHEAD_BYTES) > 100_000_000
    for name in ("FIELD_CHARACTERS", "LOOK_AHEAD_BYTES"):
        monkeypatch.setattr(delimited, name, 1_000)
    text = "湖水, \n" * 200
    (tmp_path / "long.csv").write_text(f'text\n"{text}"\n"{text}"\n"{text * 2}"\n', encoding="utf-8")
    records = contents(records_of(tmp_path / "long.csv"))
    assert records[:2] == [text, text]
    assert "more than" in records[2][0]


SOUND = "The lake was calm."
OTHER_VALUES = {
    "half a surrogate pair": rb'"\ud83d"',
    "the other half": rb'["\ude00"]',
    "bytes that are not UTF-8": b'"caf\xe9"',
    "surrogates in UTF-8": b'"\xed\xa0\xbd"',
    "a raw tab": b'"a\tb"',
    "a raw NUL": b'{"a": "\0"}',
    "an unknown escape": rb'"\d+\x41"',
    "a cut escape": rb'"\u12"',
    "NaN": b"NaN",
    "infinities": b"[-Infinity, Infinity]",
    "a number beyond every double": b"1e999",
    "a number of 5,000 digits": b"9" * 5_000,
    "a leading zero": b"007",
    "another language's null": b"undefined",
    "a single-quoted word": b"'word'",
    "1,100 levels": b"[" * 1_100 + b"]" * 1_100,
    "5,000 levels": b'{"a":[' * 2_500 + b"]}" * 2_500,
    "brackets in strings": rb'[NaN, "]}", "\"]", {"}": "{"}]',
    "a comma too many": b"[1, 2,]",
}
NAMES = (b'"other"', rb'"\ud800"', b'"caf\xe9"')


def test_what_is_in_another_field_does_not_cost_a_text(tmp_path: Path) -> None:
    text = f'"label": "a", "text": "{SOUND}"'.encode()
    members = [b"%b: %b" % (name, value) for value in OTHER_VALUES.values() for name in NAMES]
    lines = [b"{%b}\n" % b", ".join(parts) for member in members for parts in ([text, member], [member, text])]
    (tmp_path / "other.jsonl").write_bytes(b"".join(lines))
    assert contents(records_of(tmp_path / "*")) == [SOUND] * 2 * len(OTHER_VALUES) * len(NAMES)
    found = all_fields(Source(files=(f"{tmp_path}/*",)))
    assert [(fields["text"], fields["label"]) for fields in found] == [(SOUND, "a")] * len(lines)


TEXT_VALUES = {
    rb'"\ud83d"': "half a surrogate pair",
    rb'"\ude00\ud83d"': "half a surrogate pair",
    b'"caf\xe9"': "bad UTF-8",
    b'"\xed\xa0\xbd"': "bad UTF-8",
    rb'"\x41"': "broken JSON",
    b"NaN": "field 'text' is not text",
    b'"a\tb\0c"': "a\tb\0c",
    b'"first", "text": "last"': "last",
    b'"open': "broken JSON",
    b'"a"]': "broken JSON",
    b'"a", "x": [1}': "broken JSON",
    b'"a"}{"text": "b"': "broken JSON",
    b'"a"} {': "broken JSON",
}


def test_a_text_that_cannot_be_read_has_its_own_reason(tmp_path: Path) -> None:
    lines = [b'{"n": NaN, "text": %b}\n' % value for value in TEXT_VALUES]
    (tmp_path / "texts.jsonl").write_bytes(b"".join(lines))
    found = contents(records_of(tmp_path / "*"))
    assert [one[0] if isinstance(one, tuple) else one for one in found] == [*TEXT_VALUES.values()]


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
