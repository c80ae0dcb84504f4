"""Arrays of objects: the same records wherever slices cut them, in bounded memory; a broken one is refused."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data import json_objects
from longmlm.data.corpus import plan_slices, read_slice
from longmlm.errors import DataError
from longmlm.settings.prepare import Source
from tests.support.corpora import WHOLE, contents, records_of

TEXTS = ['brackets ]}[{ and "quotes"', "a\\", "\\", "", "湖水", "x" * 5_000]
VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(VALUES, max_size=12), st.sampled_from([None, 0, 2]), st.integers(1, 9), st.booleans())
def test_elements_are_those_of_a_parser_whatever_the_chunks_and_slices(
    tmp_path_factory: pytest.TempPathFactory, others: list, indent: int | None, chunk: int, is_array: bool
) -> None:
    path = tmp_path_factory.mktemp("array") / "a.json"
    objects = [{"other": other, "text": f"text {number}"} for number, other in enumerate(others)]
    ends = "\n".join(json.dumps(one, indent=indent, ensure_ascii=False) for one in objects)
    path.write_text(json.dumps(objects, indent=indent, ensure_ascii=False) if is_array else ends, encoding="utf-8")
    expected = [one["text"] for one in objects]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_objects, "CHUNK_BYTES", chunk)
        for slice_bytes in (1, 100, 1 << 40):
            found = records_of(path, slice_bytes=slice_bytes)
            assert contents(found) == expected
            content = path.read_bytes()
            assert [content[int(one.origin.rpartition(":")[2])] for one in found] == [ord("{")] * len(found)


BROKEN = {  # an element, and the place in it
    b'{"text": 5" wide"}': 10,
    b'{"text": "cut': 17,  # the next quote closes the string
    b'{"text": "a", "list": [1, 2}': 27,
    b'{"text": }': 9,
    b"nul": 0,
    b'{"a": %b}' % (b"[" * 5_000): 0,
}


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("chunk", [9, 1 << 20])
def test_a_broken_element_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bytes, chunk: int
) -> None:
    monkeypatch.setattr(json_objects, "CHUNK_BYTES", chunk)
    before = "[" + "".join(f'{{"text": "湖水 {number}"}},\n' for number in range(20))
    (tmp_path / "a.json").write_bytes(before.encode() + broken + b', {"text": "last"}]')
    place = len(before.encode()) + BROKEN[broken]
    for slice_bytes in (50, WHOLE):
        with pytest.raises(DataError, match=rf"a\.json is broken at byte {place:,} .*one object per line"):
            plan_slices([Source(files=(str(tmp_path / "a.json"),))], slice_bytes)


def test_an_element_that_is_no_object_is_set_aside_and_lists_are_entered(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf[12, "text", [{"text": "a"}], {"text": "caf\xe9"}, {"text": "b"}] {"text": "c"}\n7'
    (tmp_path / "a.json").write_bytes(content)
    expected = [("not a JSON object",)] * 2 + ["a", ("bad UTF-8",), "b", "c", ("not a JSON object",)]
    for slice_bytes in (1, WHOLE):
        assert contents(records_of(tmp_path / "a.json", slice_bytes=slice_bytes)) == expected


def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    path, text = tmp_path / "large.json", "It rained. " * 2_000
    with path.open("w") as file:
        file.write("[")
        for number in range(2_000):
            file.write(json.dumps({"id": number, "text": text}) + ",")
        file.write("{}]")
    assert path.stat().st_size > 40_000_000
    source = Source(files=(str(path),))
    tracemalloc.start()
    num_records = sum(1 for spans in plan_slices([source], 10_000_000) for _ in read_slice(spans, [source]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_records == 2_001
    assert peak < 12_000_000
