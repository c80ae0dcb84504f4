"""Quotes in tables between tabs are text, unless fields are in quotes: no text is lost or joined with another."""

import csv
import gzip
import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data.corpus import check_source
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import WHOLE, all_fields, contents, outcome, records_of

WORDS = ["the", "of", "lake", "boat", "man", "river", "oak"]
MANNERS = ('"{}," he said, "{}."', '"{} {}.', '{} {}."', '"{} {}."', '{} 5" {}', "{} \\t {}", "{} {}", '"', '""{} {}')


def texts_of(num_texts: int, seed: int = 0) -> list[str]:
    """Returns paragraphs of a novel; many begin with a quotation mark, and some have one that nothing closes."""
    draw = random.Random(seed)
    return [
        draw.choice(MANNERS).format(*(" ".join(draw.choices(WORDS, k=9)) for _ in range(2))) for _ in range(num_texts)
    ]


def plain(texts: list[str], end: str, has_text_first: bool, delimiter: str = "\t") -> bytes:
    records = [("id", "text"), *((str(number), text) for number, text in enumerate(texts))]
    return "".join(delimiter.join(one[::-1] if has_text_first else one) + end for one in records).encode()


def in_quotes(texts: list[str], end: str, has_text_first: bool, quoting: int = csv.QUOTE_MINIMAL) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter="\t", quoting=quoting, lineterminator=end)
    writer.writerows([one[::-1] if has_text_first else one for one in [("id", "text"), *enumerate(texts)]])
    return file.getvalue().encode()


@pytest.mark.parametrize("has_text_first", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_texts_that_begin_with_a_quote_are_read_whole_from_a_table_without_quoting(
    tmp_path: Path, end: str, has_text_first: bool
) -> None:
    texts = texts_of(1_000)
    content = plain(texts, end, has_text_first)
    for name, written in {"a.tsv": content, "a.tsv.gz": gzip.compress(b"\xef\xbb\xbf" + content)}.items():
        (tmp_path / name).write_bytes(written)
        for slice_bytes in (WHOLE, 40_000):
            assert contents(records_of(tmp_path / name, slice_bytes=slice_bytes)) == texts
    (tmp_path / "a.csv").write_bytes(plain(texts, end, has_text_first, "|"))
    assert contents(records_of(tmp_path / "a.csv", delimiter="|")) == texts
    assert [fields["text"] for fields in all_fields(Source(files=(str(tmp_path / "a.tsv"),)))] == texts


@pytest.mark.parametrize("has_text_first", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_texts_in_quotes_are_read_whole_from_a_table_with_quoting(
    tmp_path: Path, quoting: int, end: str, has_text_first: bool
) -> None:
    single = texts_of(200)
    several = [text.replace(" ", "\n" if number % 7 else "\t", number % 3) for number, text in enumerate(single)]
    for texts in (single, several):
        content = in_quotes(texts, end, has_text_first, quoting)
        (tmp_path / "a.tsv").write_bytes(content)
        for slice_bytes in (WHOLE, 6_000):
            assert contents(records_of(tmp_path / "a.tsv", slice_bytes=slice_bytes)) == texts


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["1\tplain", '2\t"Not closed here,', '3\tbut here."'], ["plain", '"Not closed here,', 'but here."']),
        (["1\tplain", '2\t"Yes."'], ["plain", '"Yes."']),
        (["1\tplain", '2\t"The first line,', 'the second"'], ["plain", "The first line,\nthe second"]),
        (["1\tplain", '2\t"He said ""no""."'], ["plain", 'He said "no".']),
        (["1\tplain", '2\t"a\tb"'], ["plain", "a\tb"]),
        (['1\t""', '2\t"No," he said.'], ['""', '"No," he said.']),
        (["1\tplain", "", '2\t"No," he said.', ""], ["plain", '"No," he said.']),
    ],
)
def test_how_quotes_are_read_follows_from_the_records_that_can_be_read_in_one_way(
    tmp_path: Path, lines: list[str], texts: list[str]
) -> None:
    (tmp_path / "a.tsv").write_text("\n".join(["id\ttext", *lines]), encoding="utf-8")
    assert contents(records_of(tmp_path / "a.tsv")) == texts
    assert contents(records_of(tmp_path / "a.tsv", slice_bytes=1)) == texts


@pytest.mark.parametrize("sizes", [[1_500_000] * 2, [500_000, 600_000]])
def test_quoted_texts_may_be_longer_than_the_part_of_the_file_that_decides(tmp_path: Path, sizes: list[int]) -> None:
    texts = ["A line,\nand another.\n" * (size // 23) for size in sizes]
    (tmp_path / "a.tsv").write_bytes(in_quotes(texts, "\n", has_text_first=False))
    assert contents(records_of(tmp_path / "a.tsv")) == texts


def test_in_a_table_of_one_column_quoted_texts_may_have_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\nplain\n"two\nlines"\n', encoding="utf-8")
    assert contents(records_of(tmp_path / "a.tsv")) == ["plain", "two\nlines"]
    (tmp_path / "a.tsv").write_text('text\nplain\n"two\n"he said."\n', encoding="utf-8")
    assert contents(records_of(tmp_path / "a.tsv")) == ["plain", '"two', '"he said."']


def test_a_table_whose_lines_do_not_fit_its_header_with_or_without_quotes_needs_the_setting(tmp_path: Path) -> None:
    broken = b'9\t"not closed, "never" so\n'
    path = tmp_path / "a.tsv"
    for content in (in_quotes(["two\nlines", 'She said "no".'], "\n", False), plain(texts_of(9), "\n", False) + b"9\n"):
        path.write_bytes(content + broken)
        with pytest.raises(DataError, match=r'a\.tsv: .*set quoting to "double"'):
            records_of(path)
    assert len(records_of(path, quoting="none")) == 11


def test_the_setting_decides_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"Yes."\n2\t"He said ""no""."\n', encoding="utf-8")
    assert contents(records_of(tmp_path / "a.tsv")) == ["Yes.", 'He said "no".']
    assert contents(records_of(tmp_path / "a.tsv", quoting="none")) == ['"Yes."', '"He said ""no""."']
    (tmp_path / "b.tsv").write_text('id\ttext\n1\t"Yes."\n2\t"No," he said.\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 3"):
        records_of(tmp_path / "b.tsv", quoting="double")
    (tmp_path / "c.csv").write_text('text\n"Yes."\n"No" he said\n', encoding="utf-8")
    assert contents(records_of(tmp_path / "c.csv", quoting="none")) == ['"Yes."', '"No" he said']


@pytest.mark.parametrize("setting", [{"quoting": "none"}, {"delimiter": "\t"}])
def test_a_setting_for_tables_is_refused_where_there_is_no_table(tmp_path: Path, setting: dict[str, str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(DataError, match=f"{next(iter(setting))} has no effect"):
        check_source(Source(files=(str(tmp_path / "a.jsonl"),), **setting), "out")
    with pytest.raises(ValueError, match="delimiter and quoting need `files`"):
        Source(dataset="owner/name", split="train", **setting)


@pytest.mark.parametrize("header", ["id, text", "Id,Text", "id,text ", "id,,"])
def test_a_message_shows_the_exact_names_of_the_columns(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,one\n", encoding="utf-8")
    with pytest.raises(DataError, match="no column 'text'") as raised:
        records_of(tmp_path / "a.csv")
    assert ", ".join(map(repr, header.split(","))) in str(raised.value)


@settings(deadline=None, max_examples=40)
@given(
    pieces=st.lists(st.sampled_from(["a", '"', '""', "\t", "\n", '"\n', '\t"', "\r", "1\tb\n"]), max_size=40),
    slice_bytes=st.integers(1, 30),
)
def test_any_slices_of_a_table_between_tabs_give_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], slice_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes(f"n\ttext\n{''.join(pieces)}".encode())
    assert outcome(path, slice_bytes) == outcome(path)
