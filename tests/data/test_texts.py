"""Texts of JSON lines: those of a parser, also from lines that a parser refuses, or the reason why there is none."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data.corpus import SetAside
from longmlm.data.json_lines import object_of
from longmlm.data.texts import Unreadable
from tests.support.corpora import records_of

STRETCHES = st.lists(
    st.sampled_from(
        [
            "It rained. ",
            "湖水像一面镜子。",
            "他说：“好。”",
            "😀é\u0301",
            '\\ \\\\ " / ',
            "\r\n",
            "\t\u2028",
            "\\u0041",
            "a" * 30,
            "\x00",
        ]
    ),
    max_size=60,
).map("".join)


@settings(deadline=None, max_examples=150)
@given(
    text=STRETCHES,
    plain=st.booleans(),
    share=st.floats(0, 1),
    harm=st.sampled_from([b"", b'"', b"\\", b"\xff", b"\n", b"\\ud83d", b"\\q"]),
)
def test_a_harmed_json_line_gives_the_values_of_a_lenient_parser_or_none(
    text: str, plain: bool, share: float, harm: bytes
) -> None:
    line = json.dumps({"text": text * 2, "other": text}, ensure_ascii=plain).encode()
    at = int(share * len(line))
    harmed = line[:at] + harm + line[at + 1 :]
    found = object_of(harmed)
    try:
        expected = json.loads(harmed.decode(), strict=False)
    except ValueError:
        expected = None
    if isinstance(found, Unreadable):
        assert expected is None
        return
    readable = {name: value for name, value in found.items() if not isinstance(value, Unreadable)}
    assert all(value.encode() for value in readable.values() if value)
    assert expected is None or readable.items() <= expected.items()


@pytest.mark.parametrize("tail", [b"", b"\\"])
def test_a_string_that_is_cut_is_refused_in_time_that_grows_with_the_line_alone(tail: bytes) -> None:
    def seconds(num_quotes: int) -> float:
        line = b'{"text": "' + b'\\"Yes,\\" he said. ' * (num_quotes // 2) + tail
        started = time.process_time()
        assert object_of(line) == Unreadable("broken JSON")
        return time.process_time() - started

    few, many = (min(seconds(num_quotes) for _ in range(3)) for num_quotes in (500, 8_000))
    assert many < 16 * 5 * few  # a quadratic search takes 256 times as long


def test_long_records_are_documents_or_set_aside_as_short_ones_are(tmp_path: Path) -> None:
    long = "Es regnet. " * 40
    lines = {
        json.dumps({"text": long}).encode(): long,
        json.dumps({"id": long, "text": "short"}).encode(): "short",
        json.dumps({"text": " \n" * 90}).encode(): "empty",
        json.dumps({"body": long}).encode(): "no field 'text'",
        json.dumps({"text": [long]}).encode(): "field 'text' is not text",
        json.dumps({"text": long}).encode()[:-9]: "broken JSON",
        json.dumps({"text": '"Ja." ' * 40}).encode()[:-9]: "broken JSON",
        b'{"text": "' + b"\xff" * 90 + b'"}': "bad UTF-8",
        b'{"text": "' + b"\\ud800" * 90 + b'"}': "half a surrogate pair",
        b'{"cut": "\\ud800", "text": "' + long.encode() + b'", "cut too": "' + b"\\ud800" * 90 + b'"}': long,
    }
    (tmp_path / "long.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "long.txt").write_bytes(b"\xef\xbb\xbf" + long.encode())
    records = records_of(tmp_path / "long.*", slice_bytes=1_000)
    found = [record.reason if isinstance(record, SetAside) else record.text for record in records]
    assert found == [*lines.values(), long]
