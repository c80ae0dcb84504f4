"""Arrays of objects: the same records wherever slices cut them, broken ones set aside, in bounded memory."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data import json_array
from longmlm.data.corpus import plan_slices, read_slice
from longmlm.settings.prepare import Source
from tests.support.corpora import contents, records_of

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
        patch.setattr(json_array, "CHUNK_BYTES", chunk)
        for slice_bytes in (1, 100, 1 << 40):
            found = records_of(path, slice_bytes=slice_bytes)
            assert contents(found) == expected
            content = path.read_bytes()
            assert [content[int(one.origin.rpartition(":")[2])] for one in found] == [ord("{")] * len(found)


BROKEN = {
    b'{"text": 5" wide"}': "a quote too few",
    b'{"text": "cut': "never closed",
    b'{"text": "a", "list": [1, 2}': "a bracket of another kind",
    b'{"text": }': "no value",
    b"12": "a number",
    b'"text"': "a string",
    b"nul": "a word",
    b'["a", "b"]': "a list, whose items are strings",
}


@pytest.mark.parametrize("broken", BROKEN, ids=BROKEN.values())
@pytest.mark.parametrize("end", [b",\n", b", "])
def test_a_broken_element_does_not_cost_those_after_the_next(tmp_path: Path, broken: bytes, end: bytes) -> None:
    sound = [b'{"text": "text %d"}' % number for number in range(40)]
    (tmp_path / "a.json").write_bytes(b"[" + end.join([*sound[:20], broken, *sound[20:]]) + b"]")
    found = contents(records_of(tmp_path / "a.json"))
    texts = [one for one in found if isinstance(one, str)]
    assert set(texts) >= {f"text {number}" for number in range(40) if number != 20}
    assert any(isinstance(one, tuple) for one in found)
    assert contents(records_of(tmp_path / "a.json", slice_bytes=50)) == found


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
