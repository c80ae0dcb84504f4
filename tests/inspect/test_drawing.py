"""Rows on a terminal and on a page: colours, brackets, and text from outside as text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from longmlm.artifacts.rows import SourceRecord
from longmlm.batches.masking import MaskedRow, mask_row
from longmlm.escaping import INVISIBLE
from longmlm.inspect.drawing import PAGE_HEADER, has_colours, rows_page, rows_text
from longmlm.inspect.reading import Guess, Reader, Reading
from longmlm.reports.pages import Head
from longmlm.settings.masking import Masking
from tests.support.foreign import HOSTILE, PLAIN, page_structure

STYLE = re.compile(r"\x1b\[(30;43|30;45|30;46|0)m")
Rows = Mapping[str, Sequence[Reading]]


@pytest.fixture
def drawn(row, vocabulary, reader: Reader) -> Rows:
    """A row of two documents under two masks, with predictions of one model."""
    packed, masking = (
        row("The Han river rose in spring.", "It fell again."),
        Masking(selected_fraction=0.6, masked_share=0.5),
    )
    masked = [mask_row(packed, vocabulary.maskable, masking, 3, epoch, 0) for epoch in (0, 1)]
    readings = [reader.read(f"epoch {epoch}", one) for epoch, one in enumerate(masked)]
    return {
        "row 0": [
            replace(one, guesses={"long": [guesses(one, number) for number in range(len(one.selected))]})
            for one in readings
        ]
    }


def guesses(reading: Reading, number: int) -> tuple[Guess, ...]:
    return (Guess(reading.selected[number].text, 0.75, number % 2 == 0), Guess("wrong", 0.25, number % 2 == 1))


def test_colours_and_brackets_show_the_same(drawn: Rows) -> None:
    coloured, plain = rows_text(drawn, True), rows_text(drawn, False)
    assert not INVISIBLE.search(plain)
    assert not INVISIBLE.search(STYLE.sub("", coloured))
    replaced = coloured
    for code, (opening, closing) in {"30;43": "[]", "30;45": "{}", "30;46": "<>"}.items():
        replaced = re.sub(rf"\x1b\[{code}m(.*?)\x1b\[0m", rf"{opening}\1{closing}", replaced)
    assert replaced == plain
    outcomes = [token.outcome for reading in drawn["row 0"] for token in reading.selected]
    counts = {
        outcome: len(re.findall(rf"\x1b\[{code}m", coloured)) - 1
        for outcome, code in (("masked", "30;43"), ("random", "30;45"))
    }
    assert counts == {outcome: outcomes.count(outcome) for outcome in counts} and all(
        counts.values()
    )  # one of each is the legend
    assert plain.count("── novels, tokens 1 to") == plain.count("── laws, tokens ") == 2


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_has_colours_unless_the_user_wants_none(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_colours() == expected


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("is_coloured", [True, False])
def test_text_from_outside_controls_no_terminal(row, vocabulary, text: str, is_coloured: bool) -> None:
    shown = STYLE.sub("", rows_text(foreign(row, vocabulary, text), is_coloured))
    assert not INVISIBLE.search(shown)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_outside_is_shown_on_pages_as_text(row, vocabulary, text: str) -> None:
    def structure(words: str) -> list:
        rows = foreign(row, vocabulary, words)
        return page_structure(rows_page(Head(f"Rows of {words}", words), {f"{words} row": rows["row 0"]}, words))

    plain = structure(PLAIN)
    assert len(plain) > 30
    assert structure(text) == plain


def foreign(row, vocabulary, text: str) -> Rows:
    """Returns a row of a text, whose last token is replaced, with this text as source, language and model."""
    packed = row(f"{text} end")
    position, seen = len(packed) - 2, packed.input_ids.copy()
    seen[position] = vocabulary.special.mask
    masked = MaskedRow(packed.with_input_ids(seen), np.array([position]), packed.input_ids[[position]])
    reading = Reader(vocabulary, (SourceRecord(name=text, language=text),)).read("epoch 0", masked)
    return {"row 0": [replace(reading, guesses={text: [(Guess(text, 0.5, False),)]})]}


def test_a_page_has_direction_and_language_and_epochs_side_by_side(drawn: Rows) -> None:
    page = rows_page(Head("Rows", ""), drawn, "longmlm inspect")
    assert page.startswith(PAGE_HEADER)
    assert page.count('dir="auto" lang="en"') == page.count('dir="auto" lang="ar"') == 2
    assert page.count("<article>") == 2 and page.count('class="readings"') == 1
    kinds = [name for name in ("masked", "random", "unchanged") if f'<mark class="{name}">' in page]
    assert kinds == ["masked", "random", "unchanged"]
    right = sum(guess.is_right for one in drawn["row 0"] for own in one.guesses["long"] for guess in own)
    assert page.count('class="guess right"') == right > 3
    assert page.count("<details>") == 2  # closed, since there are two readings


def test_the_legend_explains_what_the_rows_know(row, reader: Reader, vocabulary) -> None:
    plain = row("One two.")
    known = replace(plain, sentence_starts=np.array([1]), is_word_start=np.zeros(len(plain), dtype=bool))
    for one, expected in ((plain, False), (known, True)):
        masked = mask_row(one, vocabulary.maskable, Masking(), 0, 0, 0)
        rows = {"row 0": [reader.read("epoch 0", masked)]}
        for text in (rows_text(rows, False), rows_page(Head("Rows", ""), rows, "")):
            assert ("a sentence begins" in text) is ("a word begins" in text) is expected
