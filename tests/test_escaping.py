"""Escaped text shows itself, as one line where it must be one, in terminals, Markdown and string literals."""

import ast
import io
import json
import sys
import tomllib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from longmlm.errors import UserError
from longmlm.escaping import (
    INVISIBLE,
    PrintableStream,
    markdown,
    markdown_code,
    printable,
    printable_output,
    quoted,
    single_line,
)
from longmlm.processes import fail
from longmlm.progress import dated_line, message
from longmlm.reports.tables import Table, text_table
from tests.support.foreign import HOSTILE

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from("\\`*_[]<>&|~$#+-=.!:\n\r\t\x1b")), max_size=30)


@given(TEXTS)
def test_printable_text_keeps_what_is_visible(text: str) -> None:
    shown = printable(text)
    assert not INVISIBLE.search(shown)
    assert shown == text or INVISIBLE.search(text)
    assert len(single_line(text).splitlines()) <= 1


@given(TEXTS)
@example(HOSTILE[0])
def test_literals_are_read_as_the_text(text: str) -> None:
    literal = quoted(text)
    assert "\n" not in literal and not INVISIBLE.search(literal)
    assert ast.literal_eval(literal) == json.loads(literal) == text
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert tomllib.loads(f"key = {literal}")["key"] == text
        assert yaml.safe_load(f"key: {literal}")["key"] == text


@given(TEXTS)
@example(HOSTILE[0])
def test_markdown_shows_the_text_itself(text: str) -> None:
    line = single_line(text)
    for source in (f"{markdown(text)} x", f"x {markdown(text)}", f"- x {markdown(text)} x"):
        tokens = [token for token in MARKDOWN.parse(source) if token.type == "inline"]
        assert [len(tokens), {part.type for token in tokens for part in token.children}] == [1, {"text"}]
    shown = "".join(part.content for part in MARKDOWN.parse(f"x {markdown(text)} x")[1].children)
    assert " ".join(shown.split()) == " ".join(f"x {line} x".split())
    table = MARKDOWN.parse(f"| a | b |\n| - | - |\n| {markdown(text)} | c |")
    assert [token.type for token in table].count("td_open") == 2


@given(TEXTS)
@example("``")
@example("` `")
def test_code_shows_the_text_itself(text: str) -> None:
    inline = MARKDOWN.parse(f"x {markdown_code(text)} x")[1].children
    assert [part.type for part in inline] == ["text", "code_inline", "text"]
    assert inline[1].content.strip() == single_line(text)


def test_addresses_in_text_are_no_links() -> None:
    assert markdown("http://a.b www.a.b me@a.b") == "http\\://a.b www\\.a.b me\\@a.b"
    assert markdown("a_b-c.jsonl, 3.5 %: (ok)") == "a_b-c.jsonl, 3.5 %: (ok)"


def test_control_characters_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_output():
        print("a\x1b[2Jb\tc\nd\re")
        print("\x9b1A\u202e", file=sys.stderr, end="")
        print("a bar\r\x1b[A moves", file=sys.stderr)
        message("a\x1b[2J")
        dated_line("a\x1b[2J\rb")
    print("\x1b", end="")
    out, error = capsys.readouterr()
    assert out == "a\\u001b[2Jb\tc\nd\\u000de\na\\u001b[2J\n\x1b"
    assert error.startswith("\\u009b1A\\u202ea bar\r\x1b[A moves\n") and error.endswith(" a\\u001b[2J b\n")


def test_stream_is_otherwise_the_one_that_it_writes_to() -> None:
    stream = PrintableStream(io.StringIO())
    assert stream.write("\x07") == 1
    assert (stream.getvalue(), stream.isatty()) == ("\\u0007", False)


def test_an_error_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(UserError(HOSTILE[0]))
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and not INVISIBLE.search(error)


def test_a_table_has_a_line_for_each_of_its_own() -> None:
    text = text_table(Table(["a", "b"], [[HOSTILE[0], "c"], ["d", HOSTILE[0]]]))
    assert len(text.splitlines()) == 4 and not INVISIBLE.search(text)
