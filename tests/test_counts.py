"""Numbers with their nouns: "1 row", never "1 rows"."""

import re

import pytest

from longmlm.errors import counted
from tests.support.pages import ROOT

COUNT = r"(?:len\([^{}]*\)|[\w.]*num_(?!positions|tokens)\w+(?:\([^{}]*\))?|[\w.]*rows_per_\w+|[\w.]*steps_left)"
PLURAL = re.compile(rf"\{{{COUNT}(?: // 2)?(?::,)?\}} (?:[a-z-]+ )?[a-z]{{3,}}s\b(?!\()")
ABOVE_ONE = (
    "per process",
    "documents are the same",
    "is held out",
    "are held out",
    "num_compared",
    "num_arms",
    "len(drawn)",
)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2000, "row", "2,000 rows"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (3, "process", "3 processes"),
    ],
)
def test_a_number_has_the_form_of_its_noun(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_no_message_adds_an_s_to_a_number_that_may_be_one() -> None:
    lines = [line for path in (ROOT / "src").rglob("*.py") for line in path.read_text().splitlines()]
    found = [line.strip() for line in lines if PLURAL.search(line) and not any(word in line for word in ABOVE_ONE)]
    assert not found
