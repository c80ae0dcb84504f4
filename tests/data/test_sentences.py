"""Sentence borders: no character lost, white space opens the second sentence, gold cases of ten languages."""

import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longmlm.data.sentences import TABLES, sentence_starts

GOLD = sorted((Path(__file__).parent / "sentences").glob("*.txt"))
LANGUAGES = ["en", "zh", "ja", "de", "fr", "ar", "hi", "xx"]
MARKS = st.sampled_from(
    [*"。！？….?!”’」』）)\"' \t\n\u3000\u2028", "\n\n", "  ", "\r\n", "Mr. Poe", "去公园", "a. B", "😀", "\u0301"]
)
TEXTS = st.one_of(st.text(max_size=80), st.lists(MARKS, max_size=40).map("".join))


def split_sentences(text: str, language: str) -> list[str]:
    ends = [*sentence_starts(text, language)[1:].tolist(), len(text)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.sampled_from(LANGUAGES))
@example("", "en")
@example(" \n ", "zh")
@example("\ufeff。\u2029\u0085。", "ja")
def test_the_sentences_of_any_text_joined_are_the_text_and_none_is_white_space(text: str, language: str) -> None:
    assert "".join(split_sentences(text, language)) == text
    starts = sentence_starts(text, language)
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert (starts < max(1, len(text))).all()
    sentences = split_sentences(text, language)
    assert all(sentence.strip() for sentence in sentences) or len(sentences) == 1, "white space makes no sentence"
    assert not any(sentence[-1].isspace() for sentence in sentences[:-1]), "it stands before the second of two"


def test_a_real_novel_is_cut_into_sentences_of_a_usual_length(english_texts: list[str]) -> None:
    sentences = [sentence for text in english_texts for sentence in split_sentences(text, "en")]
    assert "".join(sentences) == "".join(english_texts)
    assert len(sentences) > 2_000
    assert 8 < np.mean([len(sentence.split()) for sentence in sentences]) < 30
    assert sum(sentence.rstrip("”’)\"' ")[-1:] in ".?!:;—,…" for sentence in sentences) > 0.8 * len(sentences)


def test_every_white_space_of_unicode_may_stand_before_every_mark() -> None:
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace()]
    assert {"\u3000", "\u2028", "\xa0", "\x85"} < set(spaces)
    for space in spaces:
        text = "".join(f"It rained{space}{mark} B{space}{mark}{space}C{mark} " for mark in ".!?。！？…")
        for language in LANGUAGES:
            sentences = split_sentences(text, language)
            assert "".join(sentences) == text
            assert len(sentences) > 5


@settings(deadline=None, max_examples=300)
@given(TEXTS, TEXTS, TEXTS, st.sampled_from(LANGUAGES))
@example("", "", "“It rained. ", "en")
@example("It rained", "U.S. —", "How are you?", "en")
@example('He said "no. ', "1. It rained.", "small letters.” Yes.", "en")
def test_a_paragraph_has_the_same_sentences_wherever_it_stands(
    before: str, paragraph: str, after: str, language: str
) -> None:
    paragraph = " ".join(paragraph.split())
    inside = split_sentences(f"{before}\n\n{paragraph}\n\n{after}", language)
    starts = np.cumsum([0, *map(len, inside)])
    begin = len(before) + 2
    alone = sentence_starts(paragraph, language)[1:]
    last = begin + len(paragraph)
    assert starts[(starts > begin) & (starts < last)].tolist() == [begin + start for start in alone]


def test_the_sentences_of_a_long_text_are_those_of_its_paragraphs(english_texts: list[str], chinese_text: str) -> None:
    english = "\n\n".join(english_texts)
    paragraphs = [paragraph for paragraph in english.split("\n\n") if paragraph.strip()]
    assert len(sentence_starts(english, "en")) == sum(len(sentence_starts(one, "en")) for one in paragraphs)
    assert len(sentence_starts(chinese_text * 400, "zh")) == 400 * len(sentence_starts(chinese_text, "zh"))


def test_a_quotation_that_is_never_closed_does_not_stop_the_work() -> None:
    text = "“" + "湖水很冷。" * 40_000
    sentences = split_sentences(text, "zh")
    assert "".join(sentences) == text
    assert len(sentences) > 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("boat and 3.14 lake v1.2 " * 4_000, None),
        ("no mark at all " * 4_000, None),
        ("wrapped lines of text\nwithout a mark\n" * 2_000, None),
        ("no_space_at_all" * 4_000, None),
        ("नाव और झील। " * 6_000, "नाव और झील।"),
        ("He saw Mr. Poe, who had wrapped\nthe parcel. " * 1_500, "He saw Mr. Poe, who had wrapped\nthe parcel."),
        ("湖水很冷，他没有回答。" * 3_000, "湖水很冷，他没有回答。"),
    ],
)
def test_a_long_text_has_no_other_sentences(text: str, sentence: str | None) -> None:
    sentences = {one.strip() for one in split_sentences(text, "zh" if "。" in text else "en")}
    assert sentences == {sentence or text.strip()}


HOSTILE = (
    ".", "A. ", "“", '。"', "(“", ".”", "[1] ", " \n", ".'", "湖", "a.b", " .", '"«', "1.",
)  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_the_time_grows_with_the_length(part: str, language: str) -> None:
    def seconds(times: int) -> float:
        started = time.process_time()
        sentence_starts(part * times + "x", language)
        return time.process_time() - started

    assert seconds(16_000) < 40 * max(seconds(2_000), 0.001)


def gold_cases(path: Path) -> list[str]:
    """Returns texts with a bar at each border; two characters \\n stand for a new line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.replace("\\n", "\n") for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("path", GOLD, ids=lambda path: path.stem)
def test_a_sentence_ends_where_the_gold_cases_of_its_language_say_so(path: Path) -> None:
    cases = gold_cases(path)
    assert len(cases) > 7
    for text in cases:
        assert split_sentences(text.replace("|", ""), path.stem) == text.split("|")


def test_ten_languages_have_gold_cases() -> None:
    assert [path.stem for path in GOLD] == ["ar", "de", "en", "es", "fr", "hi", "ja", "ko", "ru", "zh"]


CLOSING = ("”", "’", "’”", "”’", "」", "』", "』」", "）", "】", "》", ")", "〕")


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_closing_marks_belong_to_the_sentence_that_they_close(language: str) -> None:
    for closing, end in product(CLOSING, "。！？"):
        text = f"湖水很冷{end}{closing}|他没有回答{end}{closing}|走吧{end}"
        assert split_sentences(text.replace("|", ""), language) == text.split("|")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        *((unknown, "It rained.| She went out.") for unknown in ("xx", "klingon", "", "zh-Hant-TW", "EN", "sw")),
        ("zh-hant", "「好。」他說。|走吧。"),
        ("uk", "Вул. Шевченка довга.| Він пішов."),
        ("de-at", "Der 2. Weltkrieg begann.| Er war lang."),
        ("sr-latn", "Npr. ovo je g. Petrović.| On ide."),
        ("it", "È l'Ing. Rossi.| Ciao."),
        ("el", "Πού είναι;| Εδώ."),
        ("hy", "Բարև Ձեզ:| Իմ անունն է Արմինե:"),
        ("ur", "یہ ہے۔| وہ ہے۔"),
        ("sv", "Det är t.ex. bra, bl.a. här.| Ja."),
    ],
)
def test_other_languages_have_the_rules_of_a_related_one_or_those_of_all(language: str, text: str) -> None:
    assert split_sentences(text.replace("|", ""), language) == text.split("|")


def test_a_language_has_one_table_and_an_abbreviation_one_kind() -> None:
    names = [name for key, table in TABLES.items() for name in (key, *table.get("related", "").split())]
    assert len(names) == len(set(names))
    for table in TABLES.values():
        words = [word for key in ("never", "numbered", "last") for word in table.get(key, "").split()]
        assert len(words) == len(set(words))
        assert not any(word != word.lower() for word in words)
