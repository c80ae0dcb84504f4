"""Texts of JSON lines: those of a parser, also from lines that a parser refuses, or the reason why there is none."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longmlm.data.json_lines import object_of
from longmlm.data.texts import Unreadable

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
