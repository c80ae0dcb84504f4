"""Slices: whatever their size, they hold every record once and in order, of plain and of compressed files."""

import gzip
import json
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data.corpus import Document, SetAside, Slice, plan_slices, read_slice
from longmlm.data.files import count_bytes
from longmlm.settings.prepare import Source

LINES = [
    *(json.dumps({"text": f"Line {number} " + "é湖😀" * (number % 7)}, ensure_ascii=False) for number in range(40)),
    "",
    "  ",
    "broken",
    json.dumps({"text": "A very long line. " * 60}),
    "\r",
    *(json.dumps({"text": str(number)}) for number in range(9)),
]
CONTENT = "\n".join(LINES).encode()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Two sources: the same lines plain and compressed, with small texts between them and an empty file."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.jsonl").write_bytes(CONTENT)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(CONTENT))
    (folder / "c.txt").write_text("A text of its own. " * 30, encoding="utf-8")
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"Another one."))
    (folder / "e.jsonl").write_bytes(b"")
    (folder / "f.jsonl.zst").write_bytes(zstd.compress(CONTENT + b"\n"))
    return [Source(files=(f"{folder}/[a-d]*",)), Source(files=(f"{folder}/e.jsonl", f"{folder}/f*"))]


def records_in(slices: list[Slice], sources: list[Source]) -> list[Document | SetAside]:
    return [record for spans in slices for record in read_slice(spans, sources)]


def test_one_slice_that_is_large_enough_holds_everything(sources: list[Source]) -> None:
    (spans,) = plan_slices(sources, 1 << 30)
    records = records_in([spans], sources)
    texts = [record.text for record in records if isinstance(record, Document)]
    lines = [json.loads(line)["text"] for line in LINES if line.startswith("{")]
    assert texts == [*lines, *lines, "A text of its own. " * 30, "Another one.", *lines]
    assert [record.reason for record in records if isinstance(record, SetAside)] == ["not a JSON object"] * 3
    assert [record.source for record in records] == [0] * (len(records) - 51) + [1] * 51


@settings(deadline=None, max_examples=20)
@given(slice_bytes=st.one_of(st.integers(1, 300), st.integers(300, 3 * len(CONTENT))))
def test_slices_of_any_size_hold_every_record_once_and_in_order(sources: list[Source], slice_bytes: int) -> None:
    slices = plan_slices(sources, slice_bytes)
    assert records_in(slices, sources) == records_in(plan_slices(sources, 1 << 30), sources)
    assert len(slices) >= len(CONTENT) // slice_bytes


@settings(deadline=None, max_examples=60)
@given(
    lines=st.lists(st.sampled_from(["", " ", "x", '{"text": "é"}', '{"text": "湖水"}\r', "\ufeff"]), max_size=12),
    slice_bytes=st.integers(1, 40),
    ends=st.booleans(),
)
def test_records_do_not_depend_on_where_the_cuts_fall(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], slice_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_text("\n".join(lines) + "\n" * ends, encoding="utf-8", newline="")
    sources = [Source(files=(str(path),))]
    texts = [
        record.text for record in records_in(plan_slices(sources, slice_bytes), sources) if isinstance(record, Document)
    ]
    assert texts == [json.loads(line)["text"] for line in lines if line.startswith("{")]


def test_slices_have_about_the_size_asked_for_and_small_files_share_one(sources: list[Source]) -> None:
    slices = plan_slices(sources, 1_000)
    sizes = [sum(span.size for span in spans) for spans in slices]
    paths = {span.path for spans in slices for span in spans}
    assert sum(sizes) == sum(count_bytes(Path(path)) for path in paths)
    assert all(1_000 <= size < 1_000 + 600 for size in sizes[:-1])
    assert any(len(spans) > 1 for spans in slices)
    assert any(span.start > 0 for spans in slices for span in spans)


def test_a_text_file_is_never_cut(sources: list[Source]) -> None:
    texts = [span for spans in plan_slices(sources, 1) for span in spans if ".txt" in span.path]
    assert [(span.start, span.end, span.size) for span in texts] == [(0, 1, 570), (0, 1, 12)]
