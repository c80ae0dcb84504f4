"""Long texts: what is decoded piece by piece is what a string would have been, and is refused where it would be."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from longmlm.data import encoding, texts
from longmlm.data import sentences as sentences_module
from longmlm.data.corpus import Document, SetAside, plan_slices, read_slice, text_hash
from longmlm.data.encoding import encode
from longmlm.data.json_lines import object_of
from longmlm.data.sentences import sentence_starts
from longmlm.data.texts import LongText, Unreadable, pieces_of, text_of
from longmlm.data.vocabulary import vocabulary_of
from longmlm.settings.prepare import Source

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


@pytest.fixture(autouse=True)
def short_pieces() -> Iterator[None]:
    """Makes texts long from a few bytes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "LONG_BYTES", 40)
        patch.setattr(texts, "PIECE_BYTES", 16)
        yield


def joined(text: texts.Text) -> str:
    return "".join(pieces_of(text))


def plainly(value: texts.Text | Unreadable) -> str | Unreadable:
    return value if isinstance(value, Unreadable) else joined(value)


@settings(deadline=None, max_examples=60)
@given(text=STRETCHES, span=st.lists(st.integers(0, 900), min_size=2, max_size=2))
def test_a_long_text_has_the_length_and_the_slices_of_the_string(text: str, span: list[int]) -> None:
    long, (begin, end) = text_of(text.encode()), span
    assert isinstance(long, LongText) == (len(text.encode()) > 40)
    assert (len(long), joined(long), long[begin:end]) == (len(text), text, text[begin:end])


@settings(deadline=None, max_examples=60)
@given(text=STRETCHES, plain=st.booleans(), other=STRETCHES)
def test_a_long_json_line_gives_the_values_that_a_parser_gives(text: str, plain: bool, other: str) -> None:
    value = {"id": 7, "text": text, "of": {"deep": [other, None]}, "other": other, "tail": "end"}
    line = json.dumps(value, ensure_ascii=plain).encode()
    found = object_of(line)
    assert found.keys() == value.keys()
    assert (joined(found["text"]), joined(found["other"]), found["id"]) == (text, other, 7)
    if len(line) > 40 and len(text) > 40:
        assert isinstance(found["text"], LongText)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "LONG_BYTES", 1 << 20)
        patch.setattr(texts, "PIECE_BYTES", 1 << 20)
        short = object_of(harmed)
    try:
        expected = json.loads(harmed.decode(), strict=False)
    except ValueError:
        expected = None
    if isinstance(found, Unreadable):
        assert (found, expected) == (short, None)
        return
    assert isinstance(short, dict)
    assert {name: plainly(value) for name, value in found.items()} == short
    readable = {name: value for name, value in short.items() if not isinstance(value, Unreadable)}
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


def test_escapes_and_characters_are_never_cut() -> None:
    for text in ("\\" * 99, '"' * 99, "😀" * 99, "湖" * 99, "\\n" * 99, "a\\" * 99, "\ud7ff\ue000" * 50):
        for plain in (True, False):
            line = json.dumps({"text": text}, ensure_ascii=plain).encode()
            assert len(list(pieces_of(text_of(line)))) > 5
            assert joined(object_of(line)["text"]) == text


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 40, 41])
def test_bytes_that_are_no_utf8_are_refused_wherever_they_are(size: int) -> None:
    for bad in (b"\xff", b"\xe6\xb9", b"\xf0\x9f\x98", b"\x80"):
        for offset in range(60):
            with pytest.raises(UnicodeDecodeError):
                text_of(b"a" * offset + bad + b"b" * (60 - offset))


@settings(deadline=None, max_examples=60)
@given(text=STRETCHES)
def test_a_long_text_has_the_hash_of_the_string(text: str) -> None:
    assert text_hash(text_of(text.encode())) == text_hash(text)


@settings(deadline=None, max_examples=30)
@given(text=STRETCHES, language=st.sampled_from(["en", "zh", "de"]))
def test_a_long_text_has_the_sentences_and_tokens_of_the_string(
    text: str, language: str, tokenizers_by_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = vocabulary_of(tokenizers_by_kind["word_piece"], "tiny").tokenizer
    long = text_of((text * 4).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences_module, "PIECE_CHARACTERS", 50)
        patch.setattr(encoding, "PIECE_CHARACTERS", 300)
        patch.setattr(encoding, "CONTEXT_CHARACTERS", 150)
        starts = sentence_starts(text * 4, language)
        assert sentence_starts(long, language).tolist() == starts.tolist()
        expected = [sentence.tolist() for sentence in encode(tokenizer, text * 4, starts)]
        assert [sentence.tolist() for sentence in encode(tokenizer, long, starts)] == expected
    assert np.concatenate([[], *expected]).tolist() == tokenizer.encode(text * 4, add_special_tokens=False).ids


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
    sources = [Source(files=(f"{tmp_path}/long.*",))]
    records = [record for spans in plan_slices(sources, 1_000) for record in read_slice(spans, sources)]
    found = [record.reason if isinstance(record, SetAside) else joined(record.text) for record in records]
    assert found == [*lines.values(), long]
    assert isinstance(records[0], Document) and isinstance(records[0].text, LongText)
