"""Masks that are written in a text, words that are masked, and texts with neither."""

import os
from pathlib import Path

import pytest

from longmlm.errors import DataError
from longmlm.predict.masks import SHOWN_CHARACTERS, masked_text, read_text

TEXT = "The cat sat; a Cat, the cat. Category 天下大勢，分久必合，天下。"


def parts(text: str, word: str | None = None, occurrence: int = 1, *mask_tokens: str) -> list[str]:
    masked = masked_text(text, word, occurrence, mask_tokens)
    return [f"{masked.text[:start]}|{masked.text[start:end]}" for start, end in masked.spans]


def test_each_kind_of_mask_is_found_in_one_text() -> None:
    assert parts("a [MASK] b <mask> c <|mask|>.", None, 1, "<|mask|>") == [
        "a |[MASK]",
        "a [MASK] b |<mask>",
        "a [MASK] b <mask> c |<|mask|>",
    ]
    masked = masked_text("a [MASK] b <mask>", None, 1, ["<mask>"])
    assert masked.with_masks("[M]") == "a [M] b [M]"
    assert masked.text == "a [MASK] b <mask>"


@pytest.mark.parametrize(
    ("word", "occurrence", "before"),
    [
        ("cat", 1, "The "),
        ("cat", 2, "The cat sat; a Cat, the "),
        ("Category", 1, "The cat sat; a Cat, the cat. "),
        ("天下", 1, "The cat sat; a Cat, the cat. Category "),
        ("天下", 2, "The cat sat; a Cat, the cat. Category 天下大勢，分久必合，"),
        ("大", 1, "The cat sat; a Cat, the cat. Category 天下"),
        ("the cat.", 1, "The cat sat; a Cat, "),
    ],
)
def test_a_word_is_masked_where_it_stands_by_itself_or_in_a_script_without_spaces(
    word: str, occurrence: int, before: str
) -> None:
    assert parts(TEXT, word, occurrence) == [f"{before}|{word}"]


def test_several_occurrences_are_noted() -> None:
    assert "'cat' occurs 2 times in the text: occurrence 2 is masked" in masked_text(TEXT, "cat", 2, ()).note
    assert not masked_text(TEXT, "sat", 1, ()).note


@pytest.mark.parametrize(
    ("given", "word", "occurrence", "message"),
    [
        ("no mask", None, 1, "the text has no mask: write .MASK. or <mask>"),
        ("no/file.txt", None, 1, "no/file.txt: there is no such file, and the text has no mask"),
        (TEXT, "dog", 1, "does not have the word 'dog': name a word that it has"),
        (TEXT, "CAT", 1, "does not have the word 'CAT', but 'cat': upper and lower case differ"),
        (TEXT, "atego", 1, "'atego' except in 'Category': name the whole word"),
        (TEXT, "cat", 3, "has 'cat' 2 times: set occurrence to at most 2"),
        ("a [MASK] cat", "cat", 1, r"already has a mask, \[MASK\]: remove it, or --mask"),
    ],
)
def test_a_text_without_the_mask_is_refused(given: str, word: str | None, occurrence: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        masked_text(given, word, occurrence, ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not a text file in UTF-8"),
        (b"a\0b", "not a text file"),
        (b" \n", "is empty"),
        (None, "folder"),
    ],
)
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text.txt"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        masked_text(str(path), None, 1, ())


def test_a_file_is_read_and_a_long_text_is_no_path(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\ufeffa <mask>", encoding="utf-8")
    assert parts(str(path)) == ["a |<mask>"]
    assert len(parts("word " * 2000 + "[MASK]")) == 1


def test_a_mask_is_shown_in_a_line_with_the_text_around_it() -> None:
    masked = masked_text("one\ntwo  [MASK]\tthree", None, 1, ())
    assert masked.surroundings(0) == "one two [MASK] three"
    long = masked_text(f"{'a' * 100}<mask>{'b' * 100}", None, 1, ()).surroundings(0)
    assert long == f"…{'a' * SHOWN_CHARACTERS}[MASK]{'b' * SHOWN_CHARACTERS}…"


def test_a_text_that_is_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "text")
    with pytest.raises(DataError, match="pipe or a device"):
        read_text(str(tmp_path / "text"))
