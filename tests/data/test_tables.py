"""Parquet and CSV files: each record is a document or is set aside with a reason, whatever the slices."""

import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data.corpus import plan_slices
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import WHOLE, contents, outcome, records_of

TEXTS = [
    "The lake was calm.",
    "湖水像一面镜子。",
    "one\ntwo\r\nthree",
    'She said: "No, never".',
    "a,b;c\td",
    "  spaced  ",
]


def csv_bytes(rows: list[list[str]], end: str = "\r\n", quoted: bool = False) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL).writerows(rows)
    return file.getvalue().encode()


def test_bad_csv_records_are_set_aside_with_their_offset_and_their_neighbours_survive(tmp_path: Path) -> None:
    lines = {
        b"1,good": "good",
        b"2": ("broken CSV",),
        b"3,too,many": ("broken CSV",),
        b"4,in\rside": ("broken CSV",),
        b"5,": ("empty",),
        b"6,bad \xff byte": ("bad UTF-8",),
        b'7,a 5" pipe': 'a 5" pipe',
        b'8,"two\nlines"': "two\nlines",
        b"": None,
        b"9,last": "last",
    }
    path = tmp_path / "bad.csv"
    path.write_bytes(b"n,text\n" + b"\n".join(lines))
    for slice_bytes in (WHOLE, 1, 20, 33):
        records = records_of(path, slice_bytes=slice_bytes)
        assert contents(records) == [value for value in lines.values() if value]
        begins = [path.read_bytes().index(line) for line, value in lines.items() if value]
        assert [record.origin for record in records] == [f"{path}:{begin}" for begin in begins]


@pytest.mark.parametrize(
    "broken",
    [b'1,"open', b'2,"He said "no", and\nleft."', b'3,"escaped \\"so\\"."', b'4,"closed" too early', b'5,"a",b\r"c'],
)
def test_a_file_in_which_quotes_break_their_rules_is_refused_with_the_line(tmp_path: Path, broken: bytes) -> None:
    records = csv_bytes([[str(number), text] for number, text in enumerate(TEXTS)], "\n")
    path = tmp_path / "broken.csv"
    for before in (b"", records):
        path.write_bytes(b"n,text\n" + before + broken + b"\n" + records)
        line = 2 + before.count(b"\n")
        for slice_bytes in (WHOLE, 20):
            with pytest.raises(DataError, match=rf"broken\.csv: .* line {line} .*two quotes.*quoting to"):
                plan_slices([Source(files=(str(path),))], slice_bytes)


@settings(deadline=None, max_examples=80)
@given(
    pieces=st.lists(st.sampled_from(["a", "é", '"', '""', ",", "\n", '"\n', ',"', "\r", "b,c\n"]), max_size=40),
    slice_bytes=st.integers(1, 30),
)
def test_any_slices_of_a_broken_csv_file_give_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], slice_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-broken.csv.gz"
    path.write_bytes(gzip.compress(f"n,text\n{''.join(pieces)}".encode()))
    assert outcome(path, slice_bytes) == outcome(path)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_csv_file_with_another_delimiter_is_read_with_it_and_else_refused_with_the_setting(
    tmp_path: Path, delimiter: str
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([["n", "text"], *(["1", text] for text in TEXTS)])
    path, content = tmp_path / "other.csv", file.getvalue().encode()
    path.write_bytes(content)
    records = records_of(path, slice_bytes=1, delimiter=delimiter)
    assert contents(records) == TEXTS
    assert records[0].origin == f"{path}:{content.index(b'1' + delimiter.encode())}"
    assert len(plan_slices([Source(files=(str(path),), delimiter=delimiter)], 1)) >= len(TEXTS)
    with pytest.raises(DataError, match=r"other\.csv.* set delimiter"):
        records_of(path)


CELLS = st.text(st.sampled_from("ab湖é\", \n\r\t'0"), min_size=0, max_size=12)


@settings(deadline=None, max_examples=25)
@given(cells=st.lists(st.tuples(CELLS, CELLS), max_size=12), slice_bytes=st.integers(1, 60))
def test_csv_records_are_those_of_the_whole_file_wherever_slices_begin(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]], slice_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(csv_bytes([["other", "text"], *([*row] for row in cells)], "\n", quoted=True))
    expected = [text if text.strip() else ("empty",) for _, text in cells]
    assert contents(records_of(path, slice_bytes=slice_bytes)) == expected


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "texts.parquet"
    values = [*TEXTS, None, "", *(f"Line {number}. " * 20 for number in range(500))]
    table = pa.table({"n": range(len(values)), "text": values, "more": ["x"] * len(values)})
    pq.write_table(table, path, row_group_size=120, data_page_size=1_000)
    return path


def test_each_record_of_a_parquet_file_is_a_document(parquet: Path) -> None:
    records = records_of(parquet)
    assert contents(records) == [*TEXTS, ("null",), ("empty",), *(f"Line {number}. " * 20 for number in range(500))]
    assert [record.origin for record in records] == [f"{parquet}:{number}" for number in range(508)]
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    pq.write_table(pa.table({"text": raw.view(pa.string())}), parquet)
    assert contents(records_of(parquet)) == ["good", ("bad UTF-8",)]


@pytest.mark.parametrize("slice_bytes", [1, 700, 5_000, 30_000])
def test_parquet_records_do_not_depend_on_slices_that_cut_within_row_groups(parquet: Path, slice_bytes: int) -> None:
    slices = plan_slices([Source(files=(str(parquet),))], slice_bytes)
    assert len(slices) > 2
    assert records_of(parquet, slice_bytes=slice_bytes) == records_of(parquet)
    sizes = [sum(span.size for span in spans) for spans in slices[:-1]]
    assert all(slice_bytes <= size < slice_bytes + 1_000 for size in sizes)


def test_a_missing_column_is_an_error_that_names_the_columns(parquet: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_bytes(b"n,body\n1,x\n")
    with pytest.raises(DataError, match="no column 'body'.* text_field .*'n', 'text', 'more'"):
        records_of(parquet, text_field="body")
    with pytest.raises(DataError, match="no column 'text'.* text_field .*'n', 'body'"):
        records_of(tmp_path / "texts.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(DataError, match="empty.csv has no column"):
        records_of(tmp_path / "empty.csv")


def test_a_damaged_parquet_file_is_an_error_that_names_it(parquet: Path, tmp_path: Path) -> None:
    content = parquet.read_bytes()
    middle = len(content) // 3
    broken = {
        "cut.parquet": content[:-9],
        "no.parquet": b"text",
        "page.parquet": content[:middle] + b"\xff" * 600 + content[middle + 600 :],
    }
    for name, damaged in broken.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DataError, match=f"{name} is damaged"):
            records_of(tmp_path / name)
